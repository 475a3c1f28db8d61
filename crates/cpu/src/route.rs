//! Which tokens of a batch a sub-layer runs for.

use crate::buffer::unwritten;
use crate::parallel;
use std::sync::Arc;

/// Tokens of one task.
const TOKENS: usize = 128;

/// Tokens that run, in ascending order; the others are skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    running: Arc<[u32]>,
    tokens: usize,
}

impl Route {
    /// From one decision for each token; `None` if all of them run, so that no sub-layer pays for a route that
    /// leaves out nothing.
    pub fn of(runs: impl IntoIterator<Item = bool>) -> Option<Self> {
        let mut tokens = 0;
        let running: Arc<[u32]> = (runs.into_iter().enumerate())
            .inspect(|_| tokens += 1)
            .filter(|&(_, runs)| runs)
            .map(|(token, _)| token as u32)
            .collect();
        (running.len() < tokens).then_some(Self { running, tokens })
    }

    /// The tokens that run.
    pub fn running(&self) -> &[u32] {
        &self.running
    }

    /// How many run.
    pub fn len(&self) -> usize {
        self.running.len()
    }

    /// Whether no token runs.
    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// All tokens of the batch.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Whether each token runs.
    pub fn decisions(&self) -> Vec<bool> {
        let mut runs = vec![false; self.tokens];
        self.running.iter().for_each(|&token| runs[token as usize] = true);
        runs
    }

    /// The running tokens of each sequence of `time` tokens, as ranges of [`Route::running`].
    pub fn sequences(&self, time: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
        let mut first = 0;
        (0..self.tokens / time.max(1)).map(move |sequence| {
            let end = (sequence + 1) * time;
            let more = self.running[first..].iter().take_while(|&&t| (t as usize) < end).count();
            let range = first..first + more;
            first += more;
            range
        })
    }

    /// The rows of the running tokens: `[tokens, width]` to `[running, width]`.
    pub fn gather(&self, rows: &[f32], width: usize) -> Vec<f32> {
        assert_eq!(rows.len(), self.tokens * width, "a row for each token");
        // SAFETY: every row is copied to.
        let mut out = unsafe { unwritten(self.len() * width) };
        let parts = out.chunks_mut(TOKENS * width).zip(self.running.chunks(TOKENS));
        parallel::for_each(parts, |(out, running)| {
            for (out, &token) in out.chunks_exact_mut(width).zip(running) {
                out.copy_from_slice(&rows[token as usize * width..][..width]);
            }
        });
        out
    }

    /// Puts rows back to where [`Route::gather`] took them from; those of skipped tokens are zero.
    pub fn scatter(&self, rows: &[f32], width: usize) -> Vec<f32> {
        assert_eq!(rows.len(), self.len() * width, "a row for each running token");
        // SAFETY: every token's row is copied to or cleared.
        let mut out = unsafe { unwritten(self.tokens * width) };
        self.each_token(&mut out, rows, width, |out, row| match row {
            Some(row) => out.copy_from_slice(row),
            None => out.fill(0.0),
        });
        out
    }

    /// Adds rows to those that [`Route::gather`] took them from.
    pub fn add_back(&self, sums: &mut [f32], rows: &[f32], width: usize) {
        self.each_token(sums, rows, width, |sum, row| {
            if let Some(row) = row {
                sum.iter_mut().zip(row).for_each(|(sum, more)| *sum += more);
            }
        });
    }

    /// Goes through all tokens' rows, with the gathered row of those that run.
    fn each_token(
        &self,
        all: &mut [f32],
        gathered: &[f32],
        width: usize,
        change: impl Fn(&mut [f32], Option<&[f32]>) + Sync,
    ) {
        parallel::for_each(all.chunks_mut(TOKENS * width).enumerate(), |(part, all)| {
            let first = part * TOKENS;
            let mut next = self.running.partition_point(|&token| (token as usize) < first);
            for (t, row) in all.chunks_exact_mut(width).enumerate() {
                let runs = self.running.get(next).is_some_and(|&r| r as usize == first + t);
                change(row, runs.then(|| &gathered[next * width..][..width]));
                next += usize::from(runs);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(text: &str) -> Option<Route> {
        Route::of(text.chars().map(|c| c == 'x'))
    }

    #[test]
    fn a_route_that_leaves_out_nothing_is_none() {
        assert_eq!(route("xxx"), None);
        assert_eq!(route(""), None);
        let none = route("...").unwrap();
        assert!(none.is_empty());
        assert_eq!(none.tokens(), 3);
    }

    #[test]
    fn rows_come_back_to_their_places() {
        let route = route(".x.xx.").unwrap();
        assert_eq!(route.running(), [1, 3, 4]);
        assert_eq!(route.decisions(), [false, true, false, true, true, false]);
        let rows: Vec<f32> = (0..12).map(|i| i as f32).collect();
        let gathered = route.gather(&rows, 2);
        assert_eq!(gathered, [2.0, 3.0, 6.0, 7.0, 8.0, 9.0]);
        let back = route.scatter(&gathered, 2);
        assert_eq!(back, [0.0, 0.0, 2.0, 3.0, 0.0, 0.0, 6.0, 7.0, 8.0, 9.0, 0.0, 0.0]);
        let mut sums = vec![1.0; 12];
        route.add_back(&mut sums, &gathered, 2);
        assert_eq!(sums, [1.0, 1.0, 3.0, 4.0, 1.0, 1.0, 7.0, 8.0, 9.0, 10.0, 1.0, 1.0]);
    }

    #[test]
    fn many_tokens_come_back_to_their_places() {
        let runs = |token: usize| token % 7 < 3 || (200..500).contains(&token);
        let route = Route::of((0..1000).map(runs)).unwrap();
        let rows: Vec<f32> = (1..=1000).map(|i| i as f32).collect();
        let back = route.scatter(&route.gather(&rows, 1), 1);
        for (token, (back, row)) in back.iter().zip(&rows).enumerate() {
            assert_eq!(*back, if runs(token) { *row } else { 0.0 });
        }
    }

    #[test]
    fn each_sequence_knows_its_own() {
        let ranges: Vec<_> = route(".x.xx....x").unwrap().sequences(2).collect();
        assert_eq!(ranges, [0..1, 1..2, 2..3, 3..3, 3..4]);
    }
}
