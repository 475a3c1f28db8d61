//! Short rows, some elements at a time.
//!
//! Within a loop over slices the compiler asks again and again whether they overlap, and where it cannot know how long the loop is, it
//! may take one element after another. Of arrays it knows both.

/// Runs a piece of code for each piece of so many elements. In it, `N` is the number of elements of the piece that begins with
/// the named one: 16 as long as there are as many, then 8, 4 and 1.
macro_rules! pieces {
    ($length:expr, |$at:ident| $body:block) => {{
        let mut $at = 0;
        let length: usize = $length;
        pieces!(@ 16, $at, length, $body);
        pieces!(@ 8, $at, length, $body);
        pieces!(@ 4, $at, length, $body);
        pieces!(@ 1, $at, length, $body);
    }};
    (@ $n:literal, $at:ident, $length:ident, $body:block) => {
        while $length - $at >= $n {
            const N: usize = $n;
            $body
            $at += N;
        }
    };
}

/// The elements from `at` on.
#[inline(always)]
pub(crate) fn load<const N: usize>(x: &[f32], at: usize) -> [f32; N] {
    let mut piece = [0.0; N];
    piece.copy_from_slice(&x[at..at + N]);
    piece
}

/// Replaces the elements from `at` on.
#[inline(always)]
pub(crate) fn store<const N: usize>(x: &mut [f32], at: usize, piece: [f32; N]) {
    x[at..at + N].copy_from_slice(&piece);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_is_of_one_piece() {
        for length in 0..70 {
            let x: Vec<f32> = (0..length).map(|i| i as f32).collect();
            let (mut y, mut sizes) = (vec![0.0; length], Vec::new());
            pieces!(length, |at| {
                let piece: [f32; N] = load(&x, at);
                store(&mut y, at, piece.map(|x| x + 1.0));
                sizes.push(N);
            });
            assert!(y.iter().zip(&x).all(|(y, x)| *y == x + 1.0));
            assert_eq!(sizes.iter().sum::<usize>(), length);
            assert!(sizes.is_sorted_by(|a, b| a >= b), "{sizes:?}");
        }
    }
}
