//! Colours of pictures that most eyes can tell apart, on paper too.

use crate::palette::{COLOURS, Look};
use plotters::style::RGBColor;

/// From low to high: dark blue through green to yellow.
const RISING: [RGBColor; 6] = [
    RGBColor(0x2b, 0x1b, 0x5a),
    RGBColor(0x2f, 0x4b, 0x8f),
    RGBColor(0x22, 0x78, 0x96),
    RGBColor(0x2f, 0xa5, 0x83),
    RGBColor(0x8f, 0xcb, 0x4e),
    RGBColor(0xfb, 0xe7, 0x4a),
];
/// From below zero through zero to above zero.
const PARTED: [RGBColor; 5] = [
    RGBColor(0x1f, 0x4e, 0x9c),
    RGBColor(0x8f, 0xb4, 0xdc),
    RGBColor(0xf5, 0xf5, 0xf5),
    RGBColor(0xe8, 0xa2, 0x7c),
    RGBColor(0xa8, 0x32, 0x24),
];

/// The colour of a series; variants are paler.
pub(super) fn series(look: Look) -> RGBColor {
    let pale = [0.0, 0.4, 0.65][look.variant.min(2)];
    let [r, g, b] = COLOURS[look.colour % COLOURS.len()].light;
    between(RGBColor(r, g, b), RGBColor(255, 255, 255), pale)
}

/// The colour of a share between the lowest and the highest value.
pub(super) fn heat(share: f64, parted: bool) -> RGBColor {
    let stops: &[RGBColor] = if parted { &PARTED } else { &RISING };
    let place = share.clamp(0.0, 1.0) * (stops.len() - 1) as f64;
    let lower = (place.floor() as usize).min(stops.len() - 2);
    between(stops[lower], stops[lower + 1], place - lower as f64)
}

fn between(a: RGBColor, b: RGBColor, share: f64) -> RGBColor {
    let mix = |a: u8, b: u8| (f64::from(a) + (f64::from(b) - f64::from(a)) * share).round() as u8;
    RGBColor(mix(a.0, b.0), mix(a.1, b.1), mix(a.2, b.2))
}
