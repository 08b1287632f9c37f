"""Models that were written for another server: change one import, keep the class.

    import headway.compat.litserve as ls

Then `headway serve app:TheClass`. What is here is what its model classes use, not its server.
"""
