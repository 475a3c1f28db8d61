//! Single heads of rows: norm and rotation on the way in, and the way back out.

use super::Shape;
use super::plan::Places;
use super::table::Table;
use crate::pieces::{load, store};
use crate::row::inverse_rms;
use crate::rows::Columns;
use crate::simd::{dot, prefetch};

/// How many rows before it is needed a row is asked for.
pub(super) const AHEAD: usize = 8;

/// Compiles a loop for usual widths of heads, and once for any: a head is a few registers, and a loop over a length that is
/// not known costs more than they do.
macro_rules! by_width {
    ($width:expr, |$dim:ident| $body:block) => {
        match $width {
            16 => {
                let $dim = 16;
                $body
            }
            32 => {
                let $dim = 32;
                $body
            }
            64 => {
                let $dim = 64;
                $body
            }
            128 => {
                let $dim = 128;
                $body
            }
            $dim => $body,
        }
    };
}

simd! {
    /// Copies a head out of rows, the first of which begins with it, normalised and rotated.
    pub(super) fn take_head(
        out: &mut [f32], rows: &[f32], stride: usize, positions: &[u32], shape: &Shape,
        gain: Option<(&[f32], f32)>,
    ) {
        by_width!(shape.head_dim, |dim| {
            for (r, out) in out.chunks_exact_mut(dim).enumerate() {
                // A head is a short piece of each row, too short for the hardware to look ahead.
                if let Some(ahead) = rows.get((r + AHEAD) * stride..(r + AHEAD) * stride + dim) {
                    prefetch(ahead);
                }
                let from = &rows[r * stride..r * stride + dim];
                // Indexed: zipped with the positions, the compiler checks at run time whether rows overlap, and
                // leaves narrow heads to a loop that is not vectorised.
                turn(out, from, positions[r] as usize, shape, gain);
            }
        })
    }
}

/// `a b`, element by element.
#[inline(always)]
fn product<const N: usize>(mut a: [f32; N], b: [f32; N]) -> [f32; N] {
    for j in 0..N {
        a[j] *= b[j];
    }
    a
}

/// One head of one row, normalised and rotated.
#[inline(always)]
pub(super) fn turn(
    out: &mut [f32],
    from: &[f32],
    t: usize,
    shape: &Shape,
    gain: Option<(&[f32], f32)>,
) {
    let Some((gain, eps)) = gain else { return rotate(out, from, t, shape, 1.0) };
    let (half, inverse) = (from.len() / 2, inverse_rms(from, eps));
    let turns = Turns::new(t, half, shape);
    pieces!(half, |at| {
        let normed = |at: usize| {
            let scaled = product(load(from, at), [inverse; N]);
            product(scaled, load(gain, at))
        };
        let (a, b) = turns.apply::<N>(at, normed(at), normed(half + at), 1.0);
        store(out, at, a);
        store(out, half + at, b);
    });
}

/// `direction` is 1 to rotate and -1 to rotate back.
#[inline(always)]
fn rotate(out: &mut [f32], x: &[f32], t: usize, shape: &Shape, direction: f32) {
    let half = x.len() / 2;
    let turns = Turns::new(t, half, shape);
    pieces!(half, |at| {
        let (a, b) = turns.apply::<N>(at, load(x, at), load(x, half + at), direction);
        store(out, at, a);
        store(out, half + at, b);
    });
}

/// The rotations of one position.
struct Turns<'a> {
    cos: &'a [f32],
    sin: &'a [f32],
}

impl<'a> Turns<'a> {
    #[inline(always)]
    fn new(t: usize, half: usize, shape: &Shape<'a>) -> Self {
        Self { cos: &shape.cos[t * half..][..half], sin: &shape.sin[t * half..][..half] }
    }

    /// Rotates the pairs from `at` on.
    #[inline(always)]
    fn apply<const N: usize>(
        &self,
        at: usize,
        a: [f32; N],
        b: [f32; N],
        direction: f32,
    ) -> ([f32; N], [f32; N]) {
        let (cos, sin): ([f32; N], [f32; N]) = (load(self.cos, at), load(self.sin, at));
        let (mut new_a, mut new_b) = ([0.0; N], [0.0; N]);
        for j in 0..N {
            let sin = direction * sin[j];
            new_a[j] = a[j] * cos[j] - b[j] * sin;
            new_b[j] = b[j] * cos[j] + a[j] * sin;
        }
        (new_a, new_b)
    }
}

simd! {
    /// Undoes the rotation and the norm of a head's gradient `d`, which is used up, and writes it to the columns from
    /// `column` on, where `from` has the head. No other task touches these columns of these rows.
    pub(super) fn return_heads(
        to: &Columns, column: usize, places: &Places, d: &mut [f32], from: &Table, shape: &Shape,
        gain: Option<(&[f32], f32)>, d_gain: &mut [f32],
    ) {
        by_width!(shape.head_dim, |dim| {
            for (r, d) in d.chunks_exact_mut(dim).enumerate() {
                let (row, t) = (places.first + r, places.positions[r] as usize);
                // SAFETY: this task's alone, as said above.
                let out = unsafe { to.row(row, column, dim) };
                rotate(out, d, t, shape, -1.0);
                if let Some(gain) = gain {
                    leave_norm(out, d, from.row(row, column, dim), gain, d_gain);
                }
            }
        })
    }
}

/// Undoes the norm of one head `x` for its gradient `d`; the other row is room to work in.
#[inline(always)]
fn leave_norm(
    d: &mut [f32],
    room: &mut [f32],
    x: &[f32],
    (gain, eps): (&[f32], f32),
    d_gain: &mut [f32],
) {
    let inverse = inverse_rms(x, eps);
    pieces!(x.len(), |at| {
        let (d, x): ([f32; N], [f32; N]) = (load(d, at), load(x, at));
        let mut sums: [f32; N] = load(d_gain, at);
        for j in 0..N {
            sums[j] += d[j] * x[j] * inverse;
        }
        store(d_gain, at, sums);
        store(room, at, product(d, load(gain, at)));
    });
    let along = dot(room, x) * inverse * inverse * inverse / x.len() as f32;
    pieces!(x.len(), |at| {
        let (mut scaled, x): ([f32; N], [f32; N]) = (load(room, at), load(x, at));
        for j in 0..N {
            scaled[j] = scaled[j] * inverse - x[j] * along;
        }
        store(d, at, scaled);
    });
}
