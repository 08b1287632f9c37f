"""`headway.TensorModel`: named arrays with rows first. Headway concatenates and splits them."""

import asyncio
from typing import Any

import numpy as np

import headway

Array = np.ndarray[Any, np.dtype[np.float32]]


class Linear(headway.TensorModel):
    inputs = (headway.Tensor("x", "float32", (-1, 3)),)
    outputs = (headway.Tensor("y", "float32", (-1, 2)),)

    def load(self) -> None:
        self.weights = np.arange(6, dtype=np.float32).reshape(3, 2)

    def predict(self, batch: dict[str, Array]) -> dict[str, Array]:
        print(f"predict() gets an array of shape {batch['x'].shape}")
        return {"y": batch["x"] @ self.weights}


async def main() -> None:
    async with headway.Batcher[dict[str, Array], dict[str, Array]](Linear()) as batcher:
        one, two, many = (np.ones((rows, 3), np.float32) for rows in (1, 2, 100))
        answers = await batcher.many([{"x": one}, {"x": two}])
        print("each caller gets its own rows back:", [answer["y"].shape for answer in answers])
        split = await batcher.submit({"x": many})  # more than a batch: cut, run, joined again
        print("100 rows at once come back as", split["y"].shape)
        try:
            await batcher.submit({"x": np.ones((1, 4), np.float32)})
        except headway.InvalidInput as error:
            print("refused:", error)


if __name__ == "__main__":
    asyncio.run(main())
