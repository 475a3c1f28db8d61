//! What the kernels' tests share.

/// Numbers between -1 and 1 that look random and depend on the name alone.
pub(crate) fn noise(name: &str, count: usize) -> Vec<f32> {
    let seed = name.bytes().fold(7u64, |seed, byte| seed.wrapping_mul(31) + u64::from(byte));
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut draw = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..8).for_each(|_| {
        draw();
    });
    (0..count).map(|_| draw()).collect()
}

/// Fails where two slices differ by more than `tolerance`, relative to the largest magnitude expected.
#[track_caller]
pub(crate) fn assert_close(got: &[f32], want: &[f32], tolerance: f32) {
    assert_eq!(got.len(), want.len());
    let scale = want.iter().fold(1e-3f32, |scale, w| scale.max(w.abs()));
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((got - want).abs() <= tolerance * scale, "{i}: {got} is not {want} (of {scale})");
    }
}

/// Fails where a gradient is not the slope of an f64 reference, at up to 40 of its elements.
#[track_caller]
pub(crate) fn assert_gradient<C: Clone>(
    name: &str,
    gradient: &[f32],
    case: &C,
    field: impl Fn(&mut C) -> &mut [f32],
    loss: impl Fn(&C) -> f64,
) {
    const STEP: f32 = 1.0 / 1024.0;
    let count = field(&mut case.clone()).len();
    assert_eq!(gradient.len(), count, "{name}");
    let scale = gradient.iter().fold(1e-3f64, |scale, g| scale.max(f64::from(g.abs())));
    for i in (0..count).step_by(count.div_ceil(40)) {
        let at = |step: f32| {
            let mut moved = case.clone();
            let value = field(&mut moved)[i];
            field(&mut moved)[i] = value + step;
            let taken = f64::from(field(&mut moved)[i]) - f64::from(value);
            (loss(&moved), taken)
        };
        let ((up, right), (down, left)) = (at(STEP), at(-STEP));
        let slope = (up - down) / (right - left);
        let got = f64::from(gradient[i]);
        let error = (got - slope).abs();
        assert!(error <= 2e-4 * scale, "{name}[{i}]: {got} is not {slope} (of {scale})");
    }
}
