"""Ready-made models: texts, images, speech. `headway serve` finds them by their entry points, as it
finds those of other packages."""
