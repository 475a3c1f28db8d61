//! Choosing a kernel's form at run time, and the inner loops that all kernels share.

use std::fmt;
use std::sync::OnceLock;

/// The instructions that a kernel is compiled for. Results may differ in bits between forms, never within one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Those that every CPU of its kind has.
    Portable,
    /// AVX2 with FMA.
    Avx2(HasAvx2),
    /// AVX-512 as servers have had it since 2017: F, VL, BW, DQ.
    Avx512(HasAvx512),
}

/// Proof that this CPU has AVX2 and FMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HasAvx2(());

/// Proof that this CPU has AVX-512, AVX2 and FMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HasAvx512(());

impl Form {
    /// The one of this process: what the environment asks for, else the best one here. Decided once.
    ///
    /// # Panics
    /// If the environment asks for a form that is not to be had: see [`Self::asked_for`].
    pub fn best() -> Self {
        static BEST: OnceLock<Form> = OnceLock::new();
        let decide = || Self::asked_for().unwrap_or_else(|refusal| panic!("{refusal}"));
        *BEST.get_or_init(decide)
    }

    /// What `HADAL_SIMD` asks for, `portable`, `avx2` or `avx512`, else the best one here. `HADAL_PORTABLE` is the older word
    /// for the first. The error says what is wrong with the environment.
    pub fn asked_for() -> Result<Self, String> {
        if std::env::var_os("HADAL_PORTABLE").is_some() {
            return Ok(Self::Portable);
        }
        match std::env::var_os("HADAL_SIMD") {
            Some(name) => Self::named(&name.to_string_lossy()),
            None => Ok(Self::avx512().or_else(Self::avx2).unwrap_or(Self::Portable)),
        }
    }

    fn named(name: &str) -> Result<Self, String> {
        let missing = || {
            format!("HADAL_SIMD={name}: this CPU does not have it; unset it, or ask for portable")
        };
        match name {
            "portable" => Ok(Self::Portable),
            "avx2" => Self::avx2().ok_or_else(missing),
            "avx512" => Self::avx512().ok_or_else(missing),
            _ => Err(format!(
                "HADAL_SIMD={name}: there is no such form; there are portable, avx2 and avx512"
            )),
        }
    }

    /// Every one that this CPU has.
    pub fn all() -> Vec<Self> {
        [Some(Self::Portable), Self::avx2(), Self::avx512()].into_iter().flatten().collect()
    }

    /// If this CPU has it.
    pub fn avx2() -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            return Some(Self::Avx2(HasAvx2(())));
        }
        None
    }

    /// The same without AVX-512.
    pub(crate) fn narrow(self) -> Self {
        match self {
            // What has AVX-512 has AVX2: see [`HasAvx512`].
            Self::Avx512(_) => Self::Avx2(HasAvx2(())),
            form => form,
        }
    }

    /// If this CPU has it.
    pub fn avx512() -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        if Self::avx2().is_some()
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
        {
            return Some(Self::Avx512(HasAvx512(())));
        }
        None
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Self::Portable => "portable",
            Self::Avx2(_) => "avx2",
            Self::Avx512(_) => "avx512",
        })
    }
}

/// Compiles a function once for each [`Form`], and calls the one that its first argument names, `form: Form`; without that
/// argument, the best one. In it, `FUSED` says whether the CPU has fused products.
macro_rules! simd {
    (
        $(#[$meta:meta])* $vis:vis fn $name:ident$(<$generic:ident: $bound:path>)?(
            form: Form, $($arg:ident: $ty:ty),* $(,)?
        ) $(-> $ret:ty)? $body:block
    ) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name$(<$generic: $bound>)?(form: $crate::simd::Form, $($arg: $ty),*) $(-> $ret)? {
            simd!(@in form, [$($generic: $bound)?], ($($arg: $ty),*), ($(-> $ret)?), $body)
        }
    };
    (
        $(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block
    ) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name($($arg: $ty),*) $(-> $ret)? {
            simd!(@in $crate::simd::Form::best(), [], ($($arg: $ty),*), ($(-> $ret)?), $body)
        }
    };
    (
        @in $form:expr, [$($generic:ident: $bound:path)?], ($($arg:ident: $ty:ty),*), ($(-> $ret:ty)?), $body:block
    ) => {{
        #[inline(always)]
        #[allow(clippy::too_many_arguments)]
        fn portable<$($generic: $bound,)? const FUSED: bool>($($arg: $ty),*) $(-> $ret)? $body

        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma")]
        #[allow(clippy::too_many_arguments)]
        fn avx2$(<$generic: $bound>)?($($arg: $ty),*) $(-> $ret)? {
            portable::<$($generic,)? true>($($arg),*)
        }

        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")]
        #[allow(clippy::too_many_arguments)]
        fn avx512$(<$generic: $bound>)?($($arg: $ty),*) $(-> $ret)? {
            portable::<$($generic,)? true>($($arg),*)
        }
        match $form {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the form carries the proof that its instructions were detected.
            $crate::simd::Form::Avx512(_) => unsafe { avx512($($arg),*) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the form carries the proof that AVX2 and FMA were detected.
            $crate::simd::Form::Avx2(_) => unsafe { avx2($($arg),*) },
            _ => portable::<$($generic,)? false>($($arg),*),
        }
    }};
}

/// Asks for a row before it is needed.
#[inline(always)]
pub(crate) fn prefetch(row: &[f32]) {
    for line in row.chunks(16) {
        prefetch_line(line.as_ptr());
    }
}

/// Asks for a row that lies `distance` elements behind this one, if there is one.
#[inline(always)]
pub(crate) fn prefetch_behind(row: &[f32], distance: usize) {
    for line in (0..row.len()).step_by(16) {
        prefetch_line(row.as_ptr().wrapping_add(distance + line));
    }
}

/// Asks for one line of the cache. A hint: wherever it points, nothing else happens.
#[inline(always)]
pub(crate) fn prefetch_line(address: *const f32) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint may point anywhere.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Partial sums that a dot product keeps: four AVX2 registers.
const LANES: usize = 32;

/// `sum_j a_j b_j`.
#[inline(always)]
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let rest = short_dot(a_rest, b_rest);
    // Narrow heads have nothing else.
    if a.is_empty() {
        return rest;
    }
    let mut sums = [0f32; LANES];
    for (a, b) in a.iter().zip(b) {
        for j in 0..LANES {
            sums[j] += a[j] * b[j];
        }
    }
    total(sums) + rest
}

/// The same for what does not fill all lanes: eight elements at a time, as one by one each would wait for the one before.
#[inline(always)]
fn short_dot(a: &[f32], b: &[f32]) -> f32 {
    const SHORT: usize = 8;
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<SHORT>(), b.as_chunks::<SHORT>());
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    if a.is_empty() {
        return rest;
    }
    let mut sums = [0f32; SHORT];
    for (a, b) in a.iter().zip(b) {
        for j in 0..SHORT {
            sums[j] += a[j] * b[j];
        }
    }
    total(sums) + rest
}

/// `sum_j a_j a_j` and `sum_j a_j b_j` in one pass.
#[inline(always)]
pub(crate) fn square_and_dot(a: &[f32], b: &[f32]) -> (f32, f32) {
    const HALF: usize = LANES / 2;
    let (mut squares, mut products) = ([0f32; HALF], [0f32; HALF]);
    let (a_chunks, b_chunks) = (a.chunks_exact(HALF), b.chunks_exact(HALF));
    let (mut square, mut product) = (0.0, 0.0);
    for (a, b) in a_chunks.remainder().iter().zip(b_chunks.remainder()) {
        square += a * a;
        product += a * b;
    }
    for (a, b) in a_chunks.zip(b_chunks) {
        for j in 0..HALF {
            squares[j] += a[j] * a[j];
            products[j] += a[j] * b[j];
        }
    }
    (total(squares) + square, total(products) + product)
}

/// The sum of at least eight partial sums, by halves.
#[inline(always)]
pub(crate) fn total<const N: usize>(mut sums: [f32; N]) -> f32 {
    let mut count = N;
    while count > 8 {
        count /= 2;
        for j in 0..count {
            sums[j] += sums[j + count];
        }
    }
    // Without the box, the compiler shapes the loops in front of this sum after its last pairs, and
    // vectorises them two elements wide instead of eight.
    let mut sums: [f32; 8] = std::hint::black_box(std::array::from_fn(|j| sums[j]));
    for count in [4, 2, 1] {
        for j in 0..count {
            sums[j] += sums[j + count];
        }
    }
    sums[0]
}

/// `y_j += a x_j`.
#[inline(always)]
pub(crate) fn add_scaled(y: &mut [f32], a: f32, x: &[f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += a * x;
    }
}

/// `exp(x)` for `x <= 88`, with a relative error below 3e-7; zero below -88. Free of branches, so that
/// loops over it are vectorised.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    exp_by::<false>(x)
}

/// [`exp`], with fused products where `FUSED` says that the CPU has them: without them, each would be a call.
#[inline(always)]
pub(crate) fn exp_by<const FUSED: bool>(x: f32) -> f32 {
    // Exact: few enough digits that its multiples are exact, too.
    const LN_2_HIGH: f32 = 355.0 / 512.0;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    /// Adding this leaves the nearest integer in the last bits, and taking it away again the integer
    /// itself. A cast to an integer would saturate, and the loop would not be vectorised.
    const ROUND: f32 = 12_582_912.0;
    // Low enough for the power to be zero below.
    let x = x.clamp(-104.0, 88.0);
    let rounded = add_product::<FUSED>(ROUND, x, std::f32::consts::LOG2_E);
    let n = rounded - ROUND;
    let f = add_product::<FUSED>(add_product::<FUSED>(x, n, -LN_2_HIGH), n, -LN_2_LOW);
    // The best polynomial of its degree that begins with `1 + f`: 1.1e-7 off at most. By pairs, not one term after
    // another: a chain of products would leave the units waiting.
    let f2 = f * f;
    let (first, second) = (1.0 + f, add_product::<FUSED>(0.499_992_3, f, 0.166_671_16));
    let third = add_product::<FUSED>(0.041_890_33, f, 0.008_312_501);
    let p = add_product::<FUSED>(first, f2, add_product::<FUSED>(second, f2, third));
    let exponent = rounded.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) as i32;
    f32::from_bits((exponent.max(0) as u32) << 23) * p
}

/// `a + x y`.
#[inline(always)]
fn add_product<const FUSED: bool>(a: f32, x: f32, y: f32) -> f32 {
    if FUSED { x.mul_add(y, a) } else { a + x * y }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_has_seven_digits() {
        for exp in [exp_by::<false>, exp_by::<true>] {
            for i in -87_000..88_000 {
                let x = i as f32 / 1000.0;
                let (got, want) = (f64::from(exp(x)), f64::from(x).exp());
                assert!((got / want - 1.0).abs() < 3e-7, "exp({x}) is {got}, not {want}");
            }
            assert_eq!(exp(-88.0), 0.0);
            assert_eq!(exp(f32::NEG_INFINITY), 0.0);
            assert!(exp(f32::NAN).is_nan());
        }
    }

    #[test]
    fn sums_take_in_every_element() {
        for length in [0, 1, 15, 16, 31, 32, 33, 100] {
            let a: Vec<f32> = (0..length).map(|i| i as f32 + 1.0).collect();
            let squares: f32 = a.iter().map(|a| a * a).sum();
            let ones = vec![1.0; length];
            assert_eq!(dot(&a, &a), squares);
            assert_eq!(square_and_dot(&a, &ones), (squares, a.iter().sum()));
        }
    }
}
