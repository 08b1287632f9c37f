"""Arguments by name, one with a default."""

import headway.compat.bentoml as bentoml


@bentoml.service(resources={"cpu": "2"}, traffic={"timeout": 10})
class Summary:
    def __init__(self) -> None:
        self.end = "..."

    @bentoml.api
    def summarize(self, text: str, max_words: int = 5) -> str:
        words = text.split()
        return " ".join(words[:max_words]) + (self.end if len(words) > max_words else "")
