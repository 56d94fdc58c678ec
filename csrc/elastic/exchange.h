// What the members of a new generation tell each other after a loss, by push_pulls of its node
// (protocol/ledger.h): first what each has of the push_pulls that were in flight, then results that
// some of them have and others need.
#pragma once

#include <vector>

#include "base/bytes.h"
#include "node/async_node.h"
#include "protocol/ledger.h"

namespace byteps::elastic {

// The functions start, and return; `done` is called on `loop` once, with an error if the node fails
// meanwhile. `node` has started, and must outlive the call of `done`.

// What a member has.
struct Knowledge {
  protocol::LedgerTable table;
  bool has_state = false;  // of the training
};
// Gets that of all members, by rank; `own` is that of this one.
void exchange_tables(node::AsyncNode& node, transport::EventLoop& loop, const Knowledge& own,
                     UniqueFunction<void(Result<std::vector<Knowledge>>)> done);

// A part of a result that one rank has, and its memory at this one: where it is, or where it shall be.
// All ranks call this with the same transfers in the same order.
struct ResultTransfer {
  protocol::Reconciliation::Transfer what;
  protocol::Ledger::Values values;
};
void send_results(node::AsyncNode& node, transport::EventLoop& loop, std::vector<ResultTransfer> transfers,
                  UniqueFunction<void(Status)> done);

}  // namespace byteps::elastic
