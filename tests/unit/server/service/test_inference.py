"""What the service keeps of the models that it has answered for."""

import gc
import weakref

import headway
from headway.config import ModelConfig
from headway.hosting.hosted import Served
from headway.hosting.registry import Registry
from headway.server.service.inference import Inference


class Double(headway.Model[float, float]):
    def predict(self, items: list[float]) -> list[float]:
        return [2 * item for item in items]


async def test_a_model_that_a_late_request_asks_after_it_was_unloaded_is_freed() -> None:
    registry = Registry()
    inference = Inference(registry)
    config = ModelConfig(name="double", target="tests:None", warm_up=False)
    served = Served(config, model=Double())
    await served.start()
    registry.add(served)
    found = registry.find_loaded("double", "")
    assert found is served

    registry.switch("double", None, [])
    await served.close(drain_s=1)
    inference.signature_of(found)  # of a request that had found it before

    gone = weakref.ref(served)
    del served, found
    gc.collect()
    assert gone() is None
