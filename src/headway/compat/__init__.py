"""Models that were written for other servers: change one import, keep the class.

    import headway.compat.litserve as ls
    import headway.compat.bentoml as bentoml

Then `headway serve app:TheClass`. What is here is what their model classes use, not their servers.
"""
