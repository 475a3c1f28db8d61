use super::*;
use crate::testing::{assert_close, noise};

/// `[m, k] x [k, n]` in f64.
fn reference(a: impl Fn(usize, usize) -> f32, b: &[f32], [m, n, k]: [usize; 3]) -> Vec<f32> {
    let element = |i: usize, j: usize| -> f64 {
        (0..k).map(|p| f64::from(a(i, p)) * f64::from(b[p * n + j])).sum()
    };
    (0..m * n).map(|at| element(at / n, at % n) as f32).collect()
}

#[test]
fn products_of_all_shapes_are_those_of_the_definition() {
    let sizes = [1, 5, 6, 7, 16, 17, 250, 256, 300];
    let mut scratch = Scratch::default();
    for m in [1, 5, 6, 13] {
        for n in [1, 15, 16, 33] {
            for k in sizes {
                let (a, b) = (noise("a", m * k), noise("b", k * n));
                let want = reference(|i, p| a[i * k + p], &b, [m, n, k]);
                let packed = Packed::new(View::rows(&b, n), k, n, Precision::F32);
                let mut c = vec![f32::NAN; m * n];
                multiply(
                    [m, n, k],
                    View::rows(&a, k),
                    &packed,
                    &mut c,
                    n,
                    Store::SET,
                    &mut scratch,
                );
                assert_close(&c, &want, 1e-5);

                let transposed: Vec<f32> = (0..k * m).map(|i| a[i % m * k + i / m]).collect();
                let mut c = vec![1.0; m * n];
                let store = Store { scale: 2.0, add: true };
                let mut again = Packed::default();
                let columns: Vec<f32> = (0..k * n).map(|i| b[i % k * n + i / k]).collect();
                again.refill(View::transposed(&columns, k), k, n, Precision::F32);
                let sizes = [m, n, k];
                multiply(
                    sizes,
                    View::transposed(&transposed, m),
                    &again,
                    &mut c,
                    n,
                    store,
                    &mut scratch,
                );
                let want: Vec<f32> = want.iter().map(|w| 2.0 * w + 1.0).collect();
                assert_close(&c, &want, 1e-5);
            }
        }
    }
}

#[test]
fn a_sum_of_nothing_is_zero() {
    let packed = Packed::new(View::rows(&[], 3), 0, 3, Precision::F32);
    let scratch = &mut Scratch::default();
    let mut c = [f32::NAN; 8];
    let a = View::rows(&[], 0);
    multiply([2, 3, 0], a, &packed, &mut c, 5, Store::SET, scratch);
    assert_eq!([&c[..3], &c[5..]], [[0.0; 3]; 2]);
    assert!(c[3..5].iter().all(|c| c.is_nan()), "what lies between rows is not touched");
    multiply([1, 3, 0], a, &packed, &mut [7.0; 3], 3, Store::ADD, scratch);
    let layout = Layout { rows: 2, columns: 3 };
    let mut data = vec![f32::NAN; layout.len()];
    let panels = PanelsMut::new(&mut data, layout);
    // SAFETY: there is one task.
    unsafe { fill_panels(0..2, 0, a, &packed, &panels, scratch, |_, c| c[0] += 1.0) };
    assert_eq!(Panels::new(&data, layout).piece(0, 0..1)[..3], [1.0, 0.0, 0.0]);
    assert!(data.iter().all(|x| x.is_finite()));
    let nothing = Layout { rows: 2, columns: 0 };
    let mut c = [f32::NAN; 6];
    // SAFETY: as above.
    unsafe {
        let a = PanelsMut::new(&mut [], nothing);
        multiply_panels(0..2, &a, &packed, &mut c, Store::SET, scratch);
    }
    assert_eq!(c, [0.0; 6]);
}

#[test]
fn rows_that_share_cache_sets_are_copied_and_give_the_same() {
    let (m, n, k) = (7, 20, 512);
    let (a, b) = (noise("a", m * k), noise("b", k * n));
    let packed = Packed::new(View::rows(&b, n), k, n, Precision::F32);
    let mut c = vec![f32::NAN; m * n];
    let mut scratch = Scratch::default();
    multiply([m, n, k], View::rows(&a, k), &packed, &mut c, n, Store::SET, &mut scratch);
    assert_close(&c, &reference(|i, p| a[i * k + p], &b, [m, n, k]), 1e-5);
}
