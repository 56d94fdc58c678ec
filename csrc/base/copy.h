// memcpy for payloads.
#pragma once

#include "base/bytes.h"

namespace byteps {

// Copies all of `from` to `to`, which must be at least as large and must not overlap it. glibc up
// to 2.39 copies large blocks with `rep movsb`, which AMD's Zen 3 and 4 execute at a tenth of the
// speed when both addresses are almost equal modulo the page size (glibc bug 30994): the common
// case, as large arrays usually begin near the start of a page.
void copy_bytes(MutableBytes to, Bytes from);

}  // namespace byteps
