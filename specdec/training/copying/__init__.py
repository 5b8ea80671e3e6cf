"""A head that can copy: attention heads set up by hand to find what followed the text's last two tokens before.

An answer repeats much of its prompt, and a trained head of one layer hardly learns to: to look up what followed it must
know what stands in front of each token, and that takes one layer to write down and another to compare.  Models of two
layers learn such induction heads (arXiv 2209.11895) from far more text than a head is trained on.  Here they are built,
and the rest of the head is trained around them.

`stream.py` measures the head as it is and reserves directions of its stream; `matching.py` learns, from token ids
alone, codes by which two tokens in a row are told from any others; `circuits.py` puts the attention heads together;
`guard.py` keeps a training from undoing them.
"""
