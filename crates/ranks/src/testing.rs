//! For tests: what every implementation of [`Ranks`] has to keep.

use crate::{Exchange, Ranks};

/// What every implementation has to keep. All ranks call it.
///
/// # Panics
///
/// If a law is broken.
pub fn laws(ranks: &dyn Ranks) {
    assert!(ranks.rank() < ranks.size());
    parts_of_any_length_arrive_in_the_order_of_ranks(ranks);
    gathering_gives_everybody_the_same(ranks);
    several_exchanges_are_finished_in_any_order(ranks);
    a_late_rank_is_waited_for(ranks);
    large_parts_arrive_whole(ranks);
}

/// Bytes that say from whom, to whom and in which exchange they went.
fn bytes(from: usize, to: usize, number: usize, length: usize) -> Vec<u8> {
    let start = from * 31 + to * 7 + number * 3;
    (0..length).map(|i| (start + i % 251) as u8).collect()
}

/// No two ranks get the same; some get nothing.
fn length(from: usize, to: usize, number: usize) -> usize {
    (from * 5 + to * 3 + number) % 4 * 1000 + from % 2
}

fn send(ranks: &dyn Ranks, number: usize) -> Box<dyn Exchange> {
    let from = ranks.rank();
    let part = |to| bytes(from, to, number, length(from, to, number));
    ranks.exchange((0..ranks.size()).map(part).collect()).expect("nobody is lost")
}

fn receive(ranks: &dyn Ranks, number: usize, exchange: Box<dyn Exchange>) {
    let (to, parts) = (ranks.rank(), exchange.finish().expect("nobody is lost"));
    assert_eq!(parts.len(), ranks.size());
    for (from, part) in parts.iter().enumerate() {
        assert!(*part == bytes(from, to, number, length(from, to, number)), "{from} to {to}");
    }
}

fn parts_of_any_length_arrive_in_the_order_of_ranks(ranks: &dyn Ranks) {
    for number in 0..5 {
        receive(ranks, number, send(ranks, number));
    }
    let nothing = ranks.exchange(vec![Vec::new(); ranks.size()]).expect("nobody is lost");
    assert!(nothing.finish().expect("nobody is lost").iter().all(Vec::is_empty));
}

fn gathering_gives_everybody_the_same(ranks: &dyn Ranks) {
    let mine = bytes(ranks.rank(), 0, 0, 10 * ranks.rank());
    let all = ranks.gather(&mine).expect("nobody is lost");
    let expected: Vec<_> = (0..ranks.size()).map(|rank| bytes(rank, 0, 0, 10 * rank)).collect();
    assert_eq!(all, expected);
}

fn several_exchanges_are_finished_in_any_order(ranks: &dyn Ranks) {
    let mut sent: Vec<_> = (0..6).map(|number| send(ranks, number)).collect();
    for exchange in &mut sent {
        exchange.progress().expect("nobody is lost");
    }
    // Another order in every rank.
    for turn in 0..6 {
        let number = (turn * (ranks.rank() % 2 * 4 + 1) + ranks.rank()) % 6;
        receive(ranks, number, std::mem::replace(&mut sent[number], Box::new(Taken)));
    }
}

/// Stands where an exchange was.
#[derive(Debug)]
struct Taken;

impl Exchange for Taken {
    fn progress(&mut self) -> Result<(), crate::RankError> {
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Vec<Vec<u8>>, crate::RankError> {
        panic!("finished twice")
    }
}

fn a_late_rank_is_waited_for(ranks: &dyn Ranks) {
    if ranks.rank() + 1 == ranks.size() {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    receive(ranks, 2, send(ranks, 2));
}

fn large_parts_arrive_whole(ranks: &dyn Ranks) {
    const LARGE: usize = 3 << 20;
    let from = ranks.rank();
    let parts = (0..ranks.size()).map(|to| bytes(from, to, 1, LARGE + to)).collect();
    let mut exchange = ranks.exchange(parts).expect("nobody is lost");
    exchange.progress().expect("nobody is lost");
    for (other, part) in exchange.finish().expect("nobody is lost").iter().enumerate() {
        assert!(*part == bytes(other, from, 1, LARGE + from), "{other} to {from}");
    }
}
