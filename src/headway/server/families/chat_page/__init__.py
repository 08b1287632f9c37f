"""`GET /chat`: a page to talk to a language model. One file, which loads nothing else."""
