"""The pages for people. They have one look, and each is one answer, which loads nothing else."""
