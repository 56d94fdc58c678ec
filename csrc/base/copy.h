// memcpy for payloads.
#pragma once

#include "base/bytes.h"

namespace byteps {

// Copies all of `from` to `to`, which is at least as large and does not overlap it.
//
// Not memcpy: up to version 2.39 the C library copies kilobytes and more with the processor's string instruction, which
// AMD's Zen 3 and 4 carry out at a tenth of the speed where both addresses are almost equal within their pages (glibc
// bug 30994). Large arrays begin near the beginning of a page, so that is the usual case, not the rare one.
void copy_bytes(MutableBytes to, Bytes from);

}  // namespace byteps
