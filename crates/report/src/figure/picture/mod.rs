//! Figures as pictures, SVG and PNG, drawn with `plotters` and our own font: nothing of the system is needed.

mod axis;
mod colour;
mod marks;

use super::plotly::Shared;
use super::{Axis, Figure, Marks, drawable, heat_range, looks, place_looks};
use crate::palette::Look;
use axis::{Ruler, shortened};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};
use std::sync::Once;

/// Width in pixels of an SVG; a PNG has twice as many.
const WIDTH: u32 = 960;
const HEIGHT: u32 = 540;
/// A matrix has square cells.
const MATRIX: (u32, u32) = (680, 680);
/// Room for the scale of colours beside a heat map.
const COLOURS: u32 = 120;
const INK: RGBColor = RGBColor(0x1f, 0x25, 0x30);
const FAINT: RGBColor = RGBColor(0x6b, 0x72, 0x80);
const GRID: RGBColor = RGBColor(0xe6, 0xe8, 0xec);
/// PNGs have `SHARP` pixels for each of an SVG's, and each is the mean of `FINE` by `FINE`.
const SHARP: usize = 2;
const FINE: usize = 2;

/// Why a picture cannot be drawn.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum PictureError {
    /// Nothing in it can be drawn.
    #[error("figure {name} has no values to draw")]
    Empty { name: String },
    /// The drawing library gave up.
    #[error("cannot draw figure {name}: {reason}")]
    Drawing { name: String, reason: String },
}

/// The figure as SVG.
pub fn svg(figure: &Figure, shared: Shared<'_>) -> Result<String, PictureError> {
    let picture = Picture::new(figure, shared, 1)?;
    let mut text = String::new();
    picture.on(SVGBackend::with_string(&mut text, picture.size()).into_drawing_area())?;
    Ok(text)
}

/// The figure as PNG.
pub fn png(figure: &Figure, shared: Shared<'_>) -> Result<Vec<u8>, PictureError> {
    let scale = SHARP * FINE;
    let picture = Picture::new(figure, shared, scale)?;
    let (across, down) = picture.size();
    let (width, height) = (across as usize * scale, down as usize * scale);
    let mut fine = vec![0; width * height * 3];
    let size = (width as u32, height as u32);
    picture.on(BitMapBackend::with_buffer(&mut fine, size).into_drawing_area())?;
    encoded(&blended(&fine, width), across * SHARP as u32, down * SHARP as u32)
        .map_err(|error| picture.failed(error))
}

/// Smooth edges: each pixel is the mean of its square.
fn blended(fine: &[u8], width: usize) -> Vec<u8> {
    let (columns, rows) = (width / FINE, fine.len() / 3 / width / FINE);
    let mean = |row: usize, column: usize, channel: usize| {
        let square = (0..FINE * FINE).map(|i| {
            let (y, x) = (row * FINE + i / FINE, column * FINE + i % FINE);
            usize::from(fine[(y * width + x) * 3 + channel])
        });
        (square.sum::<usize>() / (FINE * FINE)) as u8
    };
    let pixels = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
    pixels.flat_map(|(row, column)| [0, 1, 2].map(|channel| mean(row, column, channel))).collect()
}

fn encoded(pixels: &[u8], width: u32, height: u32) -> Result<Vec<u8>, png::EncodingError> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(pixels)?;
    writer.finish()?;
    Ok(bytes)
}

/// A figure that is being drawn, `scale` pixels for each of an SVG's.
struct Picture<'a> {
    figure: Figure,
    shared: Shared<'a>,
    scale: i32,
}

impl<'a> Picture<'a> {
    fn new(figure: &Figure, shared: Shared<'a>, scale: usize) -> Result<Self, PictureError> {
        static FONT: Once = Once::new();
        FONT.call_once(|| {
            let bytes = include_bytes!("../../../assets/DejaVuSans.ttf");
            // It ships with the program, so it is a font; if it were not, drawing would fail.
            let _ = register_font("sans-serif", FontStyle::Normal, bytes);
        });
        let name = || figure.name.clone();
        let figure = drawable(figure).ok_or_else(|| PictureError::Empty { name: name() })?;
        Ok(Self { figure, shared, scale: scale as i32 })
    }

    fn failed(&self, reason: impl ToString) -> PictureError {
        PictureError::Drawing { name: self.figure.name.clone(), reason: reason.to_string() }
    }

    /// Whether it is a heat map whose places are in groups both ways.
    fn is_matrix(&self) -> bool {
        let Figure { x, y, marks, .. } = &self.figure;
        matches!(marks, Marks::Heat { .. }) && !x.groups.is_empty() && !y.groups.is_empty()
    }

    /// Width and height in pixels of an SVG.
    fn size(&self) -> (u32, u32) {
        if self.is_matrix() { MATRIX } else { (WIDTH, HEIGHT) }
    }

    fn px(&self, size: u32) -> i32 {
        size as i32 * self.scale
    }

    fn font(&self, size: u32, colour: RGBColor) -> TextStyle<'static> {
        ("sans-serif", self.px(size)).into_font().color(&colour)
    }

    fn on<B: DrawingBackend>(&self, area: DrawingArea<B, Shift>) -> Result<(), PictureError> {
        self.draw(&area).map_err(|error| self.failed(error))
    }

    /// Title, vertical axis' name, legend, and below them the chart.
    fn draw<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        area.fill(&WHITE)?;
        let left = self.px(24);
        area.draw_text(
            &shortened(&self.figure.title, 78 * self.size().0 as usize / WIDTH as usize),
            &self.font(21, INK),
            (left, self.px(16)),
        )?;
        let y_title = shortened(&self.figure.y.title(), 90);
        area.draw_text(&y_title, &self.font(14, FAINT), (left, self.px(46)))?;
        let below = self.legend(area, self.px(72))?;
        let (_, chart) = area.split_vertically(below);
        self.chart(&chart)?;
        area.present()
    }

    /// Names of the series with their colours, as many in a row as fit; returns where it ends.
    fn legend<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
        top: i32,
    ) -> Result<i32, DrawingAreaErrorKind<B::ErrorType>> {
        const ROWS: u32 = 4;
        let entries = self.entries();
        let named = entries.iter().any(|(name, _)| *name != self.figure.title);
        if entries.len() < 2 && (!named || !self.at_places(0).is_empty()) {
            return Ok(top);
        }
        let font = self.font(13, INK);
        let (mut x, mut y) = (self.px(24), top);
        for (i, (name, colour)) in entries.iter().enumerate() {
            let name = shortened(name, 40);
            let (width, _) = area.estimate_text_size(&name, &font)?;
            let full = width as i32 + self.px(44);
            if x + full > self.px(WIDTH - 16) {
                (x, y) = (self.px(24), y + self.px(20));
            }
            if y >= top + self.px(20 * (ROWS - 1)) && x + 2 * full > self.px(WIDTH - 16) {
                let rest = format!("and {} more", entries.len() - i);
                area.draw_text(&rest, &font, (x, y))?;
                break;
            }
            let (a, b) = ((x, y + self.px(2)), (x + self.px(14), y + self.px(8)));
            area.draw(&Rectangle::new([a, b], colour.filled()))?;
            area.draw_text(&name, &font, (x + self.px(20), y))?;
            x += full;
        }
        Ok(y + self.px(28))
    }

    /// Series by name and colour; references are grey.
    fn entries(&self) -> Vec<(String, RGBColor)> {
        let looks = looks(&self.figure.marks, self.shared.looks);
        let colour = |look: Option<Look>| look.map_or(FAINT, colour::series);
        let names = self.figure.marks.names().into_iter();
        names.zip(looks).map(|(name, look)| (name.to_owned(), colour(look))).collect()
    }

    /// The colours of a series at each place, where places are policies.
    fn at_places(&self, series: usize) -> Vec<RGBColor> {
        let looks = place_looks(&self.figure, self.shared.looks).into_iter();
        looks.map(|look| colour::series(Look { variant: series, ..look })).collect()
    }

    fn chart<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        let heat = matches!(self.figure.marks, Marks::Heat { .. });
        let (area, colours) = match heat {
            true => {
                let (area, colours) = area.split_horizontally(self.px(self.size().0 - COLOURS));
                (area, Some(colours))
            }
            false => (area.clone(), None),
        };
        let (x, y) = (self.horizontal(), self.vertical());
        let (x_ticks, y_ticks) = (x.tick_count(), y.tick_count());
        let mut chart = ChartBuilder::on(&area)
            .margin_right(self.px(28))
            .margin_bottom(self.px(10))
            .margin_top(self.px(6))
            .x_label_area_size(self.px(52))
            .y_label_area_size(self.px(match self.figure.y.categories.is_empty() {
                false if !self.is_matrix() => 130,
                _ => 70,
            }))
            .build_cartesian_2d(x, y)?;
        let mut mesh = chart.configure_mesh();
        mesh.x_labels(x_ticks)
            .y_labels(y_ticks)
            .max_light_lines(1)
            .bold_line_style(GRID.stroke_width(self.scale as u32))
            .light_line_style(TRANSPARENT)
            .axis_style(FAINT.stroke_width(self.scale as u32))
            .label_style(self.font(13, INK))
            .set_all_tick_mark_size(self.px(5))
            .axis_desc_style(self.font(14, FAINT))
            .x_desc(shortened(&self.figure.x.title(), 90));
        if heat {
            mesh.disable_mesh();
        }
        mesh.draw()?;
        self.marks(&mut chart)?;
        match colours {
            Some(colours) => self.scale_of_colours(&colours),
            None => Ok(()),
        }
    }

    fn horizontal(&self) -> Ruler {
        let axis = &self.figure.x;
        let values: Vec<f64> = match &self.figure.marks {
            Marks::Lines { series } => series.iter().flat_map(|line| line.x.clone()).collect(),
            Marks::Points { series } => series.iter().flat_map(|points| points.x.clone()).collect(),
            Marks::Bars { series } => return self.places(series.iter().map(|b| b.values.len())),
            Marks::Boxes { series } => return self.places(series.iter().map(|b| b.boxes.len())),
            Marks::Heat { values, .. } => return self.places(values.iter().map(Vec::len)),
        };
        if axis.categories.is_empty() {
            Ruler::new(axis, values.into_iter(), 8)
        } else {
            self.places([0].into_iter())
        }
    }

    fn places(&self, lengths: impl Iterator<Item = usize>) -> Ruler {
        let axis = &self.figure.x;
        let places = lengths.chain([axis.categories.len()]).max().unwrap_or(1).max(1);
        // As many names as fit beside each other.
        let longest = (0..places).map(|i| axis.place(i).chars().count().min(16)).max().unwrap_or(1);
        let room = 104 * self.size().0 as usize / WIDTH as usize;
        Ruler::places(axis, places, room / (longest + 2))
    }

    fn vertical(&self) -> Ruler {
        let axis: &Axis = &self.figure.y;
        match &self.figure.marks {
            Marks::Heat { values, .. } => {
                Ruler::places(axis, values.len(), if self.is_matrix() { 26 } else { 14 })
            }
            marks => {
                let values = marks::heights(marks);
                let ruler = Ruler::new(axis, values.into_iter(), 6);
                match marks {
                    // Bars start at zero.
                    Marks::Bars { .. } if axis.scale == super::Scale::Linear => {
                        Ruler::new(axis, marks::heights(marks).into_iter().chain([0.0]), 6)
                    }
                    _ => ruler,
                }
            }
        }
    }

    /// Lowest and highest value of the colours, and whether they diverge at zero.
    fn range(&self) -> (f64, f64, bool) {
        let range = self.shared.range.or_else(|| heat_range([&self.figure]));
        let (low, high) = range.unwrap_or((0.0, 1.0));
        if low < 0.0 && high > 0.0 {
            let far = high.max(-low);
            return (-far, far, true);
        }
        if high > low { (low, high, false) } else { (low - 0.5, high + 0.5, false) }
    }
}

#[cfg(test)]
mod tests;
