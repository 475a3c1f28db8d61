//! Curves of any length in a bounded number of points.

/// Thins a curve while it is read: neighbours share a bucket, of which only the lowest and the highest point are kept,
/// so that no spike is lost. When there are too many buckets, each two become one. The ends are always kept.
#[derive(Debug)]
pub(crate) struct Thinner<T> {
    most: usize,
    /// Points of a bucket, and of the last one so far.
    span: usize,
    filled: usize,
    buckets: Vec<Bucket<T>>,
    ends: Option<(Point<T>, Point<T>)>,
    total: usize,
}

#[derive(Clone, Copy, Debug)]
struct Point<T> {
    place: usize,
    height: f64,
    item: T,
}

#[derive(Clone, Copy, Debug)]
struct Bucket<T> {
    low: Point<T>,
    high: Point<T>,
}

impl<T: Copy> Bucket<T> {
    fn add(&mut self, other: &Self) {
        if other.low.height.total_cmp(&self.low.height).is_lt() {
            self.low = other.low;
        }
        if other.high.height.total_cmp(&self.high.height).is_gt() {
            self.high = other.high;
        }
    }
}

impl<T: Copy> Thinner<T> {
    /// Keeps every point of up to `most`, and at most about twice as many.
    pub(crate) fn new(most: usize) -> Self {
        let most = most.max(2);
        Self { most, span: 1, filled: 0, buckets: Vec::new(), ends: None, total: 0 }
    }

    /// Adds a point at the end. A height that is unknown counts as the highest.
    pub(crate) fn push(&mut self, height: Option<f64>, item: T) {
        let point = Point { place: self.total, height: height.unwrap_or(f64::INFINITY), item };
        self.total += 1;
        let first = self.ends.map_or(point, |(first, _)| first);
        self.ends = Some((first, point));
        if self.filled == self.span && self.buckets.len() == self.most {
            self.halve();
        }
        let bucket = Bucket { low: point, high: point };
        match self.buckets.last_mut() {
            Some(last) if self.filled < self.span => {
                last.add(&bucket);
                self.filled += 1;
            }
            _ => {
                self.buckets.push(bucket);
                self.filled = 1;
            }
        }
    }

    fn halve(&mut self) {
        let joined = self.buckets.chunks(2).map(|pair| {
            let mut bucket = pair[0];
            pair[1..].iter().for_each(|other| bucket.add(other));
            bucket
        });
        let is_odd = self.buckets.len() % 2 == 1;
        self.buckets = joined.collect();
        self.filled = if is_odd { self.span } else { 2 * self.span };
        self.span *= 2;
    }

    /// How many points there were.
    pub(crate) fn total(&self) -> usize {
        self.total
    }

    /// The last point.
    pub(crate) fn last(&self) -> Option<T> {
        self.ends.map(|(_, last)| last.item)
    }

    /// At most `limit` of the points, in order.
    pub(crate) fn points(&self, limit: usize) -> Vec<T> {
        let Some((first, last)) = self.ends else { return Vec::new() };
        let limit = limit.max(4);
        let kept = |buckets: &[Bucket<T>]| {
            let mut points: Vec<Point<T>> = vec![first];
            for bucket in buckets {
                let (low, high) = (bucket.low, bucket.high);
                let (one, two) = if low.place < high.place { (low, high) } else { (high, low) };
                points.extend([one, two]);
            }
            points.push(last);
            points.dedup_by_key(|point| point.place);
            points
        };
        let mut points = kept(&self.buckets);
        if points.len() > limit {
            let pieces = (limit - 2) / 2;
            let joined = (0..pieces).filter_map(|piece| {
                let count = self.buckets.len();
                let piece = piece * count / pieces..(piece + 1) * count / pieces;
                let (head, rest) = self.buckets[piece].split_first()?;
                let mut bucket = *head;
                rest.iter().for_each(|other| bucket.add(other));
                Some(bucket)
            });
            points = kept(&joined.collect::<Vec<_>>());
        }
        points.into_iter().map(|point| point.item).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_curve_is_kept_whole() {
        let mut thinner = Thinner::new(50);
        for place in 0..50 {
            thinner.push(Some(f64::from(place % 7)), place);
        }
        assert_eq!(thinner.points(50), (0..50).collect::<Vec<_>>());
        assert!(Thinner::<()>::new(5).points(9).is_empty());
    }

    #[test]
    fn a_long_curve_keeps_its_ends_and_every_spike_in_bounded_memory() {
        for total in [101, 10_000, 65_537] {
            let mut thinner = Thinner::new(100);
            for place in 0..total {
                let height = match place {
                    73 => Some(9.0),
                    99 => None,
                    _ => Some(3.0),
                };
                thinner.push(height, place);
                assert!(thinner.buckets.len() <= 100);
            }
            assert_eq!((thinner.total(), thinner.last()), (total, Some(total - 1)));
            for limit in [20, 100, 1000] {
                let points = thinner.points(limit);
                assert!(points.len() <= limit, "{} of {limit}", points.len());
                assert!(points.is_sorted_by(|a, b| a < b));
                for kept in [0, 99, total - 1] {
                    assert!(points.contains(&kept), "{kept} of {total} is lost");
                }
            }
            assert!(total != 101 || thinner.points(200).contains(&73));
        }
    }

    #[test]
    fn old_points_are_kept_as_densely_as_new_ones() {
        let mut thinner = Thinner::new(64);
        for place in 0..100_000_u32 {
            thinner.push(Some(f64::from(place.wrapping_mul(2_654_435_761) >> 8)), place);
        }
        let points = thinner.points(1000);
        let old = points.iter().filter(|&&place| place < 50_000).count();
        assert!((old * 10 / points.len()).abs_diff(5) <= 1, "{old} of {}", points.len());
    }
}
