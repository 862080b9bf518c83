"""A tokenizer of bytes with Qwen3's tags and chat format: for real text, on models too small for Qwen3's vocabulary."""

from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PAD, START, STOP = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
MARKUP = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
# Qwen3's, but for the tools: their names and arguments alone, since every byte is a token
CHAT_TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n' }}
    {%- endif %}
    {%- for tool in tools %}
        {{- tool.function.name + '(' + (tool.function.parameters.properties | join(', ')) + ')\\n' }}
    {%- endfor %}
    {{- '<tool_call>\\n{"name": ..., "arguments": ...}\\n</tool_call><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- elif not (tools and loop.first and message.role == 'system') %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""


def byte_tokenizer(
    markup: Sequence[str] = MARKUP, template: str = CHAT_TEMPLATE, merges: Sequence[tuple[str, str]] = ()
) -> PreTrainedTokenizerFast:
    """A token a byte, and Qwen3's tags as single tokens: those around messages special, the others not, as there.

    merges: of byte-pair encoding, for longer tokens.
    """
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(left + right for left, right in merges)]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in (PAD, START, STOP)])
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in markup])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=STOP,
        additional_special_tokens=[START],
        clean_up_tokenization_spaces=False,
        chat_template=template,
    )
