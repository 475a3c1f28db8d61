use super::*;
use crate::splitmix;

/// The two bf16 numbers next to a normal f32, in f64.
fn neighbours(x: f32) -> [f64; 2] {
    let below = x.to_bits() & 0xffff_0000;
    // One step further is twice as far as the last representable one if that is the largest of all.
    let high = |bits: u32| match f32::from_bits(bits) {
        high if high.is_infinite() => f64::from(f32::from_bits(bits - 0x1_0000)) * 256.0 / 255.0,
        high => f64::from(high),
    };
    [f64::from(f32::from_bits(below)), high(below + 0x1_0000)]
}

/// The definition, by distances in f64.
fn reference(x: f32) -> f32 {
    if x.is_nan() || x.is_infinite() {
        return x;
    }
    if x.is_subnormal() || x == 0.0 {
        return 0f32.copysign(x);
    }
    let [low, high] = neighbours(x);
    let (down, up) = ((f64::from(x) - low).abs(), (high - f64::from(x)).abs());
    let even = |value: f64| (value as f32).to_bits() & 0x1_0000 == 0;
    let nearest = match down.total_cmp(&up) {
        std::cmp::Ordering::Less => low,
        std::cmp::Ordering::Greater => high,
        std::cmp::Ordering::Equal if even(low) => low,
        std::cmp::Ordering::Equal => high,
    };
    nearest as f32
}

fn same(got: f32, want: f32) -> bool {
    got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan())
}

#[test]
fn rounding_goes_to_the_nearest_and_ties_to_the_even_one() {
    // Every upper half, with the lower halves at which something changes.
    for high in 0..=0xffffu32 {
        for low in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
            let x = f32::from_bits(high << 16 | low);
            let (got, want) = (bf16(x), reference(x));
            assert!(same(got, want), "{x:e} ({high:04x}{low:04x}): {got:e}, not {want:e}");
            assert_eq!(got.to_bits() & 0xffff, 0, "{x:e} is rounded to a bf16");
        }
    }
}

#[test]
fn edges_are_as_the_definition_has_them() {
    let largest = f32::from_bits(0x7f7f_0000);
    assert_eq!(bf16(f32::from_bits(0x7f7f_7fff)), largest);
    assert_eq!(bf16(f32::from_bits(0x7f7f_8000)), f32::INFINITY);
    assert_eq!(bf16(f32::MIN), f32::NEG_INFINITY);
    assert_eq!(bf16(f32::NEG_INFINITY), f32::NEG_INFINITY);
    // A signalling NaN whose bits are all in the lower half must not become an infinity.
    assert!(bf16(f32::from_bits(0x7f80_0001)).is_nan());
    assert!(bf16(f32::from_bits(0xffff_ffff)).is_nan());
    assert_eq!(bf16(f32::MIN_POSITIVE), f32::MIN_POSITIVE);
    assert_eq!(bf16(f32::from_bits(0x007f_ffff)).to_bits(), 0, "subnormal");
    assert_eq!(bf16(-f32::from_bits(1)).to_bits(), 1 << 31, "subnormal");
}

#[test]
fn parts_are_bf16_and_sum_up_to_the_whole() {
    let mut whole = 0;
    for i in 0..1 << 20 {
        let x = f32::from_bits(splitmix::finalise(i) as u32);
        let parts = split(x);
        assert!(parts.iter().all(|part| same(*part, bf16(*part))), "{x:e}: {parts:?}");
        let [first, second, third] = parts.map(f64::from);
        if !parts[0].is_finite() {
            assert!(same(parts[0], bf16(x)) && parts[1..] == [0.0; 2], "{x:e}: {parts:?}");
        } else if x.abs() > 1e-30 {
            assert_eq!(first + second + third, f64::from(x), "{parts:?}");
            whole += 1;
        } else {
            assert!((first + second + third - f64::from(x)).abs() < 2.4e-38, "{x:e}: {parts:?}");
        }
    }
    assert!(whole > 500_000);
}

#[test]
fn slices_are_rounded_as_their_elements_are() {
    // Longer than registers, and not a multiple of them.
    let values: Vec<f32> =
        (0..1003).map(|i| f32::from_bits(splitmix::finalise(i) as u32)).collect();
    let bits = |values: &[f32]| -> Vec<u32> { values.iter().map(|x| x.to_bits()).collect() };
    let mut rounded = values.clone();
    Precision::Bf16.round(&mut rounded);
    assert_eq!(bits(&rounded), bits(&values.iter().map(|x| bf16(*x)).collect::<Vec<_>>()));
    let mut parts = values.clone();
    parts.resize(3 * values.len(), f32::NAN);
    Precision::Bf16x3.round(&mut parts);
    for part in 0..3 {
        let want: Vec<f32> = values.iter().map(|x| split(*x)[part]).collect();
        assert_eq!(bits(&parts[part * values.len()..][..values.len()]), bits(&want));
    }
    let mut same = values.clone();
    Precision::F32.round(&mut same);
    assert_eq!(bits(&same), bits(&values));
}

#[test]
fn names_are_read_as_they_are_written() {
    for precision in Precision::ALL {
        assert_eq!(precision.to_string().parse(), Ok(precision));
    }
    let refusal = "half".parse::<Precision>().unwrap_err();
    assert!(refusal.contains("`half`") && refusal.contains("f32, bf16, bf16x3"), "{refusal}");
}
