"""Models, for the engines, trainers and executors that share one.

A model's adapter is a module with ``Config`` and ``check`` as every adapter has them, and in place of ``open``
two functions, for a model is a value and has nothing to close:

``load_module(cfg, site) -> torch.nn.Module``
    A Hugging Face causal language model.
``load_tokenizer(cfg, site) -> Tokenizer``
    What turns prompts into its tokens and back.

Adapters, ``tokenizers`` and ``opening`` import without torch; ``loading`` needs it.
"""
