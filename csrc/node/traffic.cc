// A node's part in placement that follows the links (protocol/link_speeds.h).
#include "base/log.h"
#include "node/async_node.h"

namespace byteps::node {

void AsyncNode::set_pace(const std::vector<uint32_t>& shares_ppb) {
  std::vector<double> shares;
  for (const uint32_t share : shares_ppb) shares.push_back(share * 1e-9);
  shares.resize(tree_->num_reducer_hosts());
  pace_.emplace(*tree_, shares);
}

std::vector<uint64_t> AsyncNode::rates_to_ranks() const {
  std::vector<uint64_t> rates;
  for (uint32_t rank = 0; rank < tree_->num_workers(); ++rank)
    rates.push_back(pace_->rate(rank, roster_.self, *tree_));
  return rates;
}

worker::ShardLinks* AsyncNode::paced_links() {
  if (parent_link_) return &parent_link_->links();
  return worker_ ? &worker_->links() : nullptr;
}

void AsyncNode::start_traffic_reporter() {
  std::vector<transport::EventLoop*> loops;
  for (const auto& loop : data_loops_) loops.push_back(loop.get());
  traffic_reporter_ = std::make_unique<TrafficReporter>(
      *control_loop_, loops, static_cast<TimeUs>(roster_.report_us),
      TrafficReporter::Callbacks{
          .read =
              [this](size_t loop, std::vector<protocol::Flow>& flows) {
                for (size_t shard = loop; shard < service_->size(); shard += data_loops_.size())
                  service_->shard(shard).add_sent_traffic(flows);
                if (auto* const links = paced_links()) links->add_sent_traffic(*data_loops_[loop], flows);
              },
          .send = [this](protocol::Traffic traffic) { client_->send(std::move(traffic)); }});
  traffic_reporter_->wake();
}

Status AsyncNode::on_speeds(const protocol::Speeds& speeds) {
  if (speeds.nic_mbps.size() != nodes_.size()) {
    return data_loss("network speeds: expected " + std::to_string(nodes_.size()) + ", got " +
                     std::to_string(speeds.nic_mbps.size()));
  }
  tree_->set_speeds(speeds.nic_mbps);
  set_pace(speeds.shares_ppb);
  service_->pace(rates_to_ranks());
  for (uint32_t service = 0; paced_links() != nullptr && service < nodes_.size(); ++service) {
    if (paced_links()->leads_to(service))
      paced_links()->pace(service, pace_->rate(roster_.self, service, *tree_));
  }
  if (worker_) worker_->request_placement(speeds.placement);
  if (roster_.self == 0 && !speeds.text.empty()) BPS_LOG(kWarning) << speeds.text;
  return Status::ok();
}

}  // namespace byteps::node
