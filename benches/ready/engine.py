"""Starts vLLM with the arguments in READY_ARGUMENTS (JSON), and generates one token."""

from __future__ import annotations

import json
import os

from sitecustomize import mark


def main() -> None:
    from vllm import LLM, SamplingParams

    mark("vllm imported")
    llm = LLM(**json.loads(os.environ["READY_ARGUMENTS"]))
    mark("ready")
    settings = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, detokenize=False)
    [output] = llm.generate([{"prompt_token_ids": [*range(1, 17)]}], settings, use_tqdm=False)
    mark("first token")
    print("TOKEN", list(output.outputs[0].token_ids), flush=True)


if __name__ == "__main__":
    main()
