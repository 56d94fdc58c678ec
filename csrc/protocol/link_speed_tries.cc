// LinkSpeeds: whether cards are faster than believed.
#include <algorithm>
#include <array>
#include <limits>
#include <span>

#include "protocol/link_speeds.h"
#include "protocol/nic_survey.h"
#include "protocol/text.h"

namespace byteps::protocol {
namespace {

constexpr std::array kTryFactors = {2.0, 1.5, 1.25, 1.15};
constexpr std::array kTryFactorsOfFastest = {1.25};
// A try that moves may take so much longer if the cards are not faster.
constexpr double kMostCost = 1.26;
constexpr int kTryWindows = 2;         // judged ones
constexpr int kLongestTry = 10;        // windows, if there is little traffic
constexpr TimeUs kLongestPause = 800;  // windows

}  // namespace

std::vector<uint32_t> LinkSpeeds::cards_to_try(const Parts& parts, TimeUs now) const {
  std::optional<uint32_t> slowest;
  for (uint32_t i = 0; i < cards_.size(); ++i) {
    const Card& card = cards_[i];
    const auto part = parts.find(i);
    const bool is_due = card.nodes > 0 && !card.is_fixed && now >= card.next_try_us;
    if (!is_due || part == parts.end() || part->second < least_usual_part()) continue;
    if (!slowest || card.mbps < cards_[*slowest].mbps) slowest = i;
  }
  std::vector<uint32_t> cards;
  for (uint32_t i = 0; slowest && i < cards_.size(); ++i) {
    const Card& card = cards_[i];
    const bool is_equal =
        std::max(card.mbps, cards_[*slowest].mbps) <= noise_ * std::min(card.mbps, cards_[*slowest].mbps);
    if (card.nodes > 0 && !card.is_fixed && is_equal) cards.push_back(i);
  }
  return cards;
}

// The next faster cards: most likely all were equal once. 0: there are none.
double LinkSpeeds::next_faster_mbps(uint32_t than) const {
  double mbps = 0;
  for (const Card& card : cards_) {
    const bool is_faster = card.nodes > 0 && card.mbps > noise_ * cards_[than].mbps;
    if (is_faster && (mbps == 0 || card.mbps < mbps)) mbps = card.mbps;
  }
  return mbps;
}

// Nullopt: it would show nothing, or cost too much if these cards are not faster.
std::optional<LinkSpeeds::Try> LinkSpeeds::make_try(const std::vector<uint32_t>& cards, double factor,
                                                    bool moves) const {
  const std::vector<double> before = believed();
  const double most = next_faster_mbps(cards.front());
  std::vector<double> mbps = before;
  for (const uint32_t card : cards)
    mbps[card] = std::min(mbps[card] * factor, most > 0 ? most : std::numeric_limits<double>::infinity());
  Try next{.cards = cards, .mbps = mbps, .shows_mbps = {}, .shares = moves ? best_shares(mbps) : shares_};
  if (moves && seconds(before, next.shares) > kMostCost * seconds(before, best_shares(before)))
    return std::nullopt;
  bool shows = false;
  for (const uint32_t card : cards) {
    next.shows_mbps.push_back(load_mbps(card, mbps, next.shares));
    shows = shows || next.shows_mbps.back() >= kSpeedNoise * before[card];
  }
  return shows ? std::optional(next) : std::nullopt;
}

std::optional<LinkSpeeds::Change> LinkSpeeds::begin_try(const Parts& parts, TimeUs now) {
  const std::vector<uint32_t> cards = cards_to_try(parts, now);
  if (cards.empty()) return std::nullopt;
  const bool are_fastest = next_faster_mbps(cards.front()) == 0;
  const std::span<const double> factors =
      are_fastest ? std::span<const double>(kTryFactorsOfFastest) : kTryFactors;
  std::optional<Try> next;
  for (const bool moves : {false, true}) {
    for (const double factor : factors) {
      if (!next) next = make_try(cards, factor, moves);
    }
  }
  for (const uint32_t card : cards) cards_[card].next_try_us = now + cards_[card].pause_us;
  if (!next) return std::nullopt;
  try_ = std::move(next);
  const std::vector<double> before = believed();
  Change change = adopt(try_->mbps, try_->shares, "");
  for (const uint32_t card : cards) cards_[card].mbps = before[card];
  return change;
}

std::optional<LinkSpeeds::Change> LinkSpeeds::go_on_trying(const Parts& parts, TimeUs now) {
  ++try_->windows;
  std::optional<double> least;
  for (const uint32_t card : try_->cards) {
    if (const auto part = parts.find(card); part != parts.end())
      least = std::min(least.value_or(1), part->second);
  }
  if (least) {
    ++try_->judged;
    try_->part += *least;
  }
  if (try_->judged < kTryWindows && try_->windows < kLongestTry) return std::nullopt;
  return end_try(now);
}

LinkSpeeds::Change LinkSpeeds::end_try(TimeUs now) {
  const Try done = std::move(*std::exchange(try_, std::nullopt));
  const double part = done.judged == 0 ? 0 : done.part / done.judged;
  std::vector<double> mbps = believed();
  std::vector<std::string> texts;
  for (size_t i = 0; i < done.cards.size(); ++i) {
    Card& card = cards_[done.cards[i]];
    const double shown = part * done.shows_mbps[i];
    if (shown >= kSpeedNoise * card.mbps) {
      texts.push_back(describe(card, shown));
      mbps[done.cards[i]] = shown;
      card.next_try_us = now;
    } else {
      card.pause_us = std::min(2 * card.pause_us, kLongestPause * window_us_);
      card.next_try_us = now + card.pause_us;
    }
  }
  std::vector<double> shares = best_shares(mbps);
  // What has moved for the try moves again only if it is worth it.
  if (seconds(mbps, shares_) < kLeastGain * seconds(mbps, shares)) shares = shares_;
  return adopt(mbps, std::move(shares), texts.empty() ? "" : "faster network cards: " + enumerate(texts));
}

}  // namespace byteps::protocol
