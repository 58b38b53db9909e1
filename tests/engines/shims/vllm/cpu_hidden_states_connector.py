"""vLLM's example connector without pinned memory and CUDA events, so that it runs on a CPU."""

import torch
from vllm.distributed.kv_transfer.kv_connector.v1 import example_hidden_states_connector as example

REAL_EMPTY_LIKE = torch.empty_like


class Done:
    def query(self):
        return True

    def synchronize(self):
        pass


def unpinned(*args, pin_memory=False, **kwargs):
    return REAL_EMPTY_LIKE(*args, **kwargs)


class CPUHiddenStatesConnector(example.ExampleHiddenStatesConnector):
    def _submit_async_write(self, pending):
        torch.empty_like = unpinned
        try:
            super()._submit_async_write(pending)
        finally:
            torch.empty_like = REAL_EMPTY_LIKE
        if pending.req_id in self._req_copy_events:
            self._req_copy_events[pending.req_id] = Done()
