"""The engine for bf16 on processors with AVX-512 bf16 instructions: a whole forward as one call into C.

Decoding at batch size 1 reads every weight for every token, so the limit is the memory's; what keeps a forward from it
is everything else: hundreds of small operators, their launches and the threads' meetings.  Here one team of threads
runs all layers in one parallel region, over weights packed once for straight reading (`products.c`).

One kernel serves every width: a row's result is the same bits whatever rows are computed with it, and whichever thread
computes it.  Other processors, number formats and devices take the PyTorch path, which is also the reference.
"""

from specdec.models.native.build import library, obstacle
from specdec.models.native.forward import NativeModel, native_for

__all__ = ["NativeModel", "library", "native_for", "obstacle"]
