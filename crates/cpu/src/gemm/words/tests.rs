use super::*;
use crate::gemm::{
    Layout, Left, Packed, Panels, PanelsMut, Scratch, View, block_tasks, fill_panels,
    multiply_panels,
};
use crate::precision::{bf16, split};
use crate::testing::noise;

/// The kinds of words that this CPU has; without bf16 instructions there is nothing to test here.
fn kinds() -> Vec<Kind> {
    let precisions = [Precision::Bf16, Precision::Bf16x3];
    let units = Unit::all();
    let of = |unit: &Unit| precisions.map(|precision| Kind { unit: *unit, precision });
    units.iter().flat_map(of).collect()
}

/// What a product of two numbers is by definition, in f64.
fn product(precision: Precision, a: f32, b: f32) -> f64 {
    let of = |x: f32| match precision {
        Precision::F32 => [x, 0.0, 0.0],
        Precision::Bf16 => [bf16(x), 0.0, 0.0],
        Precision::Bf16x3 => split(x),
    };
    let (a, b) = (of(a), of(b));
    let terms = precision.terms().iter();
    terms.map(|&(left, right)| f64::from(a[left]) * f64::from(b[right])).sum()
}

struct Case {
    sizes: [usize; 3],
    a: Vec<f32>,
    b: Vec<f32>,
}

impl Case {
    fn new(sizes @ [m, n, k]: [usize; 3]) -> Self {
        Self { sizes, a: noise("a", m * k), b: noise("b", k * n) }
    }

    fn want(&self, precision: Precision) -> Vec<f64> {
        let [m, n, k] = self.sizes;
        let term = |i, j, p| product(precision, self.a[i * k + p], self.b[p * n + j]);
        let element = |i: usize, j: usize| (0..k).map(|p| term(i, j, p)).sum();
        (0..m * n).map(|at| element(at / n, at % n)).collect()
    }

    /// By words, with both factors as they are or both transposed.
    fn got(&self, kind: Kind, turned: bool) -> Vec<f32> {
        let [m, n, k] = self.sizes;
        let turn = |matrix: &[f32], columns: usize| -> Vec<f32> {
            let rows = matrix.len() / columns.max(1);
            (0..matrix.len()).map(|i| matrix[i % rows * columns + i / rows]).collect()
        };
        let (turned_a, turned_b) = (turn(&self.a, k), turn(&self.b, n));
        let (a, b) = match turned {
            false => (View::rows(&self.a, k), View::rows(&self.b, n)),
            true => (View::transposed(&turned_a, m), View::transposed(&turned_b, k)),
        };
        let mut c = vec![f32::NAN; m * n];
        for start in (0..k).step_by(kind.block()) {
            let depth = kind.block().min(k - start);
            let mut left = vec![!0; kind.rows(m)];
            let mut right = vec![!0; n.div_ceil(NR) * kind.panel(depth)];
            pack_rows(kind, &mut left, a.after(start), m, depth);
            for (panel, out) in right.chunks_mut(kind.panel(depth)).enumerate() {
                let columns = NR.min(n - panel * NR);
                pack_panel(kind, out, b, [start, panel * NR], [depth, columns]);
            }
            let store = Store { add: start > 0, ..Store::SET };
            let (b, c) = (Right { words: &right, depth }, C::rows(&mut c, n));
            multiply(kind, [m, n, depth], &left, b, c, store);
        }
        c
    }
}

/// As many digits as sums of f32 have.
#[track_caller]
fn assert_near(got: &[f32], want: &[f64], what: &str) {
    let scale = want.iter().fold(1e-3f64, |scale, want| scale.max(want.abs()));
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(*got) - want).abs();
        assert!(error <= 2e-6 * scale, "{what}, {i}: {got} is not {want} (of {scale})");
    }
}

#[test]
fn products_of_all_shapes_are_those_of_the_definition() {
    for kind in kinds() {
        for m in [1, 2, 3, 4, 7, 12, 17, 23, 33] {
            for n in [1, 15, 16, 17, 33] {
                for k in [1, 2, 31, 32, 33, 127, 128, 200] {
                    let case = Case::new([m, n, k]);
                    let want = case.want(kind.precision);
                    for turned in [false, true] {
                        let what = format!("{kind:?} {m} {n} {k} {turned}");
                        assert_near(&case.got(kind, turned), &want, &what);
                    }
                }
            }
        }
    }
}

#[test]
fn deep_products_go_by_blocks() {
    for kind in kinds() {
        for k in [511, 512, 513, 1100] {
            let case = Case::new([13, 35, k]);
            let want = case.want(kind.precision);
            assert_near(&case.got(kind, false), &want, &format!("{kind:?} {k}"));
        }
    }
}

/// Numbers are rounded as the definition says, whatever they are: multiplied by one, each is itself.
#[test]
fn every_number_becomes_what_the_definition_says() {
    let mut numbers = vec![0.0, -0.0, 1.0, f32::MAX, -f32::MAX, 3.39e38, f32::MIN_POSITIVE];
    numbers.extend([1e-40, -1e-40, f32::from_bits(1), f32::from_bits(0x007f_ffff), 1.17e-38]);
    numbers.extend((0..4000u32).map(|i| f32::from_bits(i.wrapping_mul(0x9e37_79b9))));
    numbers.retain(|x| x.is_finite());
    let m = numbers.len();
    for kind in kinds() {
        let case = Case { sizes: [m, 1, 1], a: numbers.clone(), b: vec![1.0] };
        for turned in [false, true] {
            for (x, got) in numbers.iter().zip(case.got(kind, turned)) {
                let want = match (kind.precision, bf16(*x)) {
                    // A part that is infinite meets the zeros that one has for its other parts.
                    (Precision::Bf16x3, rounded) if rounded.is_infinite() => f32::NAN,
                    (Precision::Bf16x3, _) => split(*x).into_iter().rev().sum(),
                    (_, rounded) => rounded,
                };
                assert!(
                    got == want || got.is_nan() && want.is_nan(),
                    "{kind:?}: {x} is {got}, not {want}"
                );
            }
        }
    }
}

#[test]
fn what_is_not_finite_stays_in_its_row_and_its_column() {
    let [m, n, k] = [14, 35, 37];
    for (kind, bad) in kinds()
        .into_iter()
        .flat_map(|kind| [f32::NAN, f32::INFINITY, f32::NEG_INFINITY].map(|bad| (kind, bad)))
    {
        for (row, depth, column) in [(0, 0, 0), (12, 36, 16), (13, 15, 34)] {
            let clean = Case::new([m, n, k]);
            let want = clean.got(kind, false);
            let mut left = Case::new([m, n, k]);
            left.a[row * k + depth] = bad;
            let mut right = Case::new([m, n, k]);
            right.b[depth * n + column] = bad;
            for turned in [false, true] {
                for (i, (got, want)) in left.got(kind, turned).iter().zip(&want).enumerate() {
                    assert_eq!(!got.is_finite(), i / n == row, "{kind:?} {bad} {i}");
                    assert!(i / n == row || got == want);
                }
                for (i, (got, want)) in right.got(kind, turned).iter().zip(&want).enumerate() {
                    assert_eq!(!got.is_finite(), i % n == column, "{kind:?} {bad} {i}");
                    assert!(i % n == column || got == want);
                }
            }
        }
    }
}

#[test]
fn c_is_scaled_and_added_to_and_nothing_else_is_touched() {
    let [m, n, k] = [13, 19, 21];
    for kind in kinds() {
        let case = Case::new([m, n, k]);
        let (want, ldc) = (case.want(kind.precision), n + 3);
        let mut left = vec![0; kind.rows(m)];
        let mut right = vec![0; 2 * kind.panel(k)];
        pack_rows(kind, &mut left, View::rows(&case.a, k), m, k);
        for (panel, out) in right.chunks_mut(kind.panel(k)).enumerate() {
            let columns = NR.min(n - panel * NR);
            pack_panel(kind, out, View::rows(&case.b, n), [0, panel * NR], [k, columns]);
        }
        let mut c = vec![7.0; m * ldc];
        let (b, store) = (Right { words: &right, depth: k }, Store { scale: 0.5, add: true });
        multiply(kind, [m, n, k], &left, b, C::rows(&mut c, ldc), store);
        let inside: Vec<f32> = c.chunks(ldc).flat_map(|c| c[..n].to_vec()).collect();
        let want: Vec<f64> = want.iter().map(|want| 7.0 + 0.5 * want).collect();
        assert_near(&inside, &want, &format!("{kind:?}"));
        assert!(c.chunks(ldc).all(|c| c[n..] == [7.0; 3]));
    }
}

/// Attention multiplies by the first keys of a tile, and by the first queries of a block.
#[test]
fn both_factors_may_be_deeper_than_the_product() {
    let ([m, n, k], more) = ([5, 18, 21], 40);
    for kind in kinds() {
        let mut case = Case::new([m, n, k + more]);
        let columns = noise("columns", (k + more) * m);
        case.a = (0..m * k).map(|i| columns[i % k * m + i / k]).collect();
        let mut left = vec![0; kind.rows(m)];
        let mut right = vec![0; 2 * kind.panel(k + more)];
        pack_rows(kind, &mut left, View::transposed(&columns, m), m, k);
        for (panel, out) in right.chunks_mut(kind.panel(k + more)).enumerate() {
            let sizes = [k + more, NR.min(n - panel * NR)];
            pack_panel(kind, out, View::rows(&case.b, n), [0, panel * NR], sizes);
        }
        let mut c = vec![f32::NAN; m * n];
        let right = Right { words: &right, depth: k + more };
        multiply(kind, [m, n, k], &left, right, C::rows(&mut c, n), Store::SET);
        case.sizes = [m, n, k];
        assert_near(&c, &case.want(kind.precision), &format!("{kind:?}"));
    }
}

/// Through what callers use, in whatever is best here: blocks of depth, panels on either side, factors packed again.
#[test]
fn products_with_panels_on_either_side_are_those_of_the_definition() {
    for ([m, k, n, wide], precision) in [[300, 37, 600, 19], [9, 1100, 40, 35]]
        .into_iter()
        .flat_map(|sizes| [(sizes, Precision::Bf16), (sizes, Precision::Bf16x3)])
    {
        let (x, w, v) = (noise("x", m * k), noise("w", k * n), noise("v", n * wide));
        let layout = Layout { rows: m, columns: n };
        let packed = Packed::new(View::rows(&w, n), k, n, precision);
        let mut packed_v = Packed::default();
        packed_v.refill(View::rows(&noise("before", 4000), 4), 1000, 4, precision);
        packed_v.refill(View::rows(&v, wide), n, wide, precision);
        let mut data = vec![f32::NAN; layout.len()];
        let mut y = vec![f32::NAN; m * wide];
        let panels = PanelsMut::new(&mut data, layout);
        let scratch = &mut Scratch::default();
        for rows in block_tasks(m, precision) {
            let x = View::rows(&x[rows.start * k..], k);
            let y = &mut y[rows.start * wide..rows.end * wide];
            // SAFETY: there is one task at a time.
            unsafe {
                fill_panels(rows.clone(), k, x, &packed, &panels, scratch, |_, _| ());
                multiply_panels(rows, &panels, &packed_v, y, Store::SET, scratch);
            }
        }
        let panels = Panels::new(&data, layout);
        let hidden = (0..m * n).map(|i| panels.piece(i % n / NR, i / n..i / n + 1)[i % n % NR]);
        let hidden: Vec<f32> = hidden.collect();
        let what = format!("{precision} {m} {k} {n}");
        let mut c = vec![f32::NAN; m * n];
        crate::gemm::multiply(
            [m, n, k],
            View::rows(&x, k),
            &packed,
            &mut c,
            n,
            Store::SET,
            scratch,
        );
        assert_eq!(c, hidden, "{what}");
        let first = Case { sizes: [m, n, k], a: x, b: w };
        assert_near(&hidden, &first.want(precision), &what);
        let second = Case { sizes: [m, wide, n], a: hidden, b: v };
        assert_near(&y, &second.want(precision), &what);
    }
}

/// Whatever multiplies words here gives what f32 arithmetic on rounded operands gives elsewhere.
#[test]
fn products_over_rows_in_panels_are_those_of_the_definition() {
    // More than one block of panels, and more than one of words, which end elsewhere.
    for (tokens, width, columns) in [(1, 3, 5), (265, 17, 40), (600, 70, 33)] {
        let (x, h) = (noise("x", tokens * width), noise("h", tokens * columns));
        let layout = Layout { rows: tokens, columns };
        let data = layout.arranged(&h);
        for precision in [Precision::Bf16, Precision::Bf16x3] {
            let [left] = Left::transposed([&x], width, precision);
            let count = layout.panels() * NR;
            let mut c = vec![f32::NAN; width * count];
            left.times(Panels::new(&data, layout), 0..layout.panels(), &mut c);
            let got: Vec<f32> = c.chunks(count).flat_map(|c| c[..columns].to_vec()).collect();
            let term = |i, j, t| product(precision, x[t * width + i], h[t * columns + j]);
            let element = |i: usize, j: usize| (0..tokens).map(|t| term(i, j, t)).sum();
            let want: Vec<f64> =
                (0..width * columns).map(|at| element(at / columns, at % columns)).collect();
            assert_near(&got, &want, &format!("{precision} {tokens} {width} {columns}"));
        }
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let [m, n, k] = [300, 70, 130];
    let (a, b) = (noise("a", m * k), noise("b", k * n));
    for precision in [Precision::Bf16, Precision::Bf16x3] {
        let run = |threads: usize| -> Vec<f32> {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let packed = Packed::new(View::rows(&b, n), k, n, precision);
                let mut c = vec![f32::NAN; m * n];
                let pairs = crate::gemm::row_pairs(&mut c, n, &a, k, precision);
                crate::parallel::for_each_init(pairs, Scratch::default, |scratch, (c, a)| {
                    let sizes = [a.len() / k, n, k];
                    let a = View::rows(a, k);
                    crate::gemm::multiply(sizes, a, &packed, c, n, Store::SET, scratch);
                });
                c
            })
        };
        let one = run(1);
        assert!(one.iter().all(|c| c.is_finite()));
        assert!([2, 3].into_iter().all(|threads| run(threads) == one));
    }
}
