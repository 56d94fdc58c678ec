// memcpy for payloads.
#pragma once

#include "base/bytes.h"

namespace byteps {

// Copies all of `from` to `to`, which must be at least as large and must not overlap it. glibc up
// to 2.39 copies large blocks with `rep movsb`, which AMD's Zen 3 and 4 execute at a tenth of the
// speed when both addresses are almost equal modulo the page size (glibc bug 30994): the common
// case, as large arrays usually begin near the start of a page.
void copy_bytes(MutableBytes to, Bytes from);

// Copy as copy_bytes(), but leave the caches to others: from a source, and to a destination, that
// nobody reads soon, such as parts of a large tensor. copy_to_cold() writes past the caches
// (non-temporal stores), so the destination need not be read first; on return other threads may
// read it, as after any other write.
void copy_from_cold(MutableBytes to, Bytes from);
void copy_to_cold(MutableBytes to, Bytes from);

}  // namespace byteps
