//! What is drawn inside a picture's axes.

use super::axis::{Ruler, number, steps};
use super::{FAINT, INK, Picture, colour};
use crate::figure::{Boxes, Line, Marks, Quartiles};
use plotters::coord::Shift;
use plotters::prelude::*;

type Chart<'a, B> = ChartContext<'a, B, Cartesian2d<Ruler, Ruler>>;
type Drawn<B> = Result<(), DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>>;

/// Every height that must be on the vertical axis.
pub(super) fn heights(marks: &Marks) -> Vec<f64> {
    match marks {
        Marks::Lines { series } => series
            .iter()
            .flat_map(|line| {
                let band = line.band.iter().flat_map(|(low, high)| low.iter().chain(high).copied());
                line.y.iter().copied().flatten().chain(band)
            })
            .collect(),
        Marks::Bars { series } => series
            .iter()
            .flat_map(|bars| {
                let error = |i: usize| bars.errors.as_ref().and_then(|e| e.get(i)).copied();
                let ends = bars.values.iter().enumerate().filter_map(move |(i, value)| {
                    let (value, error) = ((*value)?, error(i).unwrap_or(0.0));
                    Some([value - error, value + error, value])
                });
                ends.flatten()
            })
            .collect(),
        Marks::Points { series } => series.iter().flat_map(|points| points.y.clone()).collect(),
        Marks::Boxes { series } => {
            let boxes = series.iter().flat_map(|boxes| boxes.boxes.iter().flatten());
            boxes.flat_map(|five| [five.min, five.max]).collect()
        }
        Marks::Heat { .. } => Vec::new(),
    }
}

fn rulers<B: DrawingBackend>(chart: &Chart<'_, B>) -> (Ruler, Ruler) {
    let axes = chart.as_coord_spec();
    (axes.x_spec().clone(), axes.y_spec().clone())
}

impl Picture<'_> {
    pub(super) fn marks<B: DrawingBackend>(&self, chart: &mut Chart<'_, B>) -> Drawn<B> {
        let colours: Vec<RGBColor> = self.entries().into_iter().map(|(_, colour)| colour).collect();
        match &self.figure.marks {
            Marks::Lines { series } => {
                for (line, colour) in series.iter().zip(&colours) {
                    self.band(chart, line, colour)?;
                }
                for (line, colour) in series.iter().zip(&colours) {
                    self.line(chart, line, colour)?;
                }
                Ok(())
            }
            Marks::Points { series } => {
                let rulers = rulers(chart);
                for (points, colour) in series.iter().zip(&colours) {
                    let style = colour.mix(0.7).filled();
                    let at = points.x.iter().zip(&points.y);
                    let at = at.map(|(x, y)| (rulers.0.at(*x), rulers.1.at(*y)));
                    chart.draw_series(at.map(|at| Circle::new(at, self.px(3), style)))?;
                }
                Ok(())
            }
            Marks::Bars { series } => {
                for (i, (bars, colour)) in series.iter().zip(&colours).enumerate() {
                    let share = Share { i, of: series.len() };
                    self.bars(chart, bars, share, colour)?;
                }
                Ok(())
            }
            Marks::Boxes { series } => {
                for (i, (boxes, colour)) in series.iter().zip(&colours).enumerate() {
                    let share = Share { i, of: series.len() };
                    self.boxes(chart, boxes, share, colour)?;
                }
                Ok(())
            }
            Marks::Heat { values, .. } => self.heat(chart, values),
        }
    }

    fn line<B: DrawingBackend>(
        &self,
        chart: &mut Chart<'_, B>,
        line: &Line,
        colour: &RGBColor,
    ) -> Drawn<B> {
        let style = colour.stroke_width(self.px(2) as u32);
        for piece in pieces(line, chart) {
            if line.dashed {
                let dashes = dashes(&piece, &rulers(chart));
                chart.draw_series(dashes.into_iter().map(|dash| PathElement::new(dash, style)))?;
                continue;
            }
            if line.x.len() <= 40 {
                let dot = |at: &(f64, f64)| Circle::new(*at, self.px(3), colour.filled());
                chart.draw_series(piece.iter().map(dot))?;
            }
            chart.draw_series([PathElement::new(piece, style)])?;
        }
        let (x, y) = rulers(chart);
        let marked = line
            .marked
            .iter()
            .filter_map(|&at| Some((x.at(*line.x.get(at)?), y.at((*line.y.get(at)?)?))));
        let rings: Vec<(f64, f64)> = marked.collect();
        let ring =
            |at: (f64, f64)| Circle::new(at, self.px(7), colour.stroke_width(self.px(2) as u32));
        chart.draw_series(rings.into_iter().map(ring))?;
        Ok(())
    }

    fn band<B: DrawingBackend>(
        &self,
        chart: &mut Chart<'_, B>,
        line: &Line,
        colour: &RGBColor,
    ) -> Drawn<B> {
        let Some((low, high)) = &line.band else { return Ok(()) };
        let (x, y) = rulers(chart);
        let ends = line.x.iter().zip(low.iter().zip(high));
        let ends: Vec<_> =
            ends.filter(|(_, (low, high))| low.is_finite() && high.is_finite()).collect();
        let lower = ends.iter().map(|(at, (low, _))| (x.at(**at), y.at(**low)));
        let upper = ends.iter().rev().map(|(at, (_, high))| (x.at(**at), y.at(**high)));
        let outline: Vec<_> = lower.chain(upper).collect();
        if outline.len() > 2 {
            // Pale areas add up to mud, so each has an edge.
            chart.draw_series([Polygon::new(outline.clone(), colour.mix(0.08))])?;
            let edge = colour.mix(0.45).stroke_width(self.scale as u32);
            chart.draw_series([PathElement::new(outline, edge)])?;
        }
        Ok(())
    }

    fn bars<B: DrawingBackend>(
        &self,
        chart: &mut Chart<'_, B>,
        bars: &crate::figure::Bars,
        share: Share,
        colour: &RGBColor,
    ) -> Drawn<B> {
        let (_, y) = rulers(chart);
        let at_places = self.at_places(share.i);
        for (place, value) in bars.values.iter().enumerate() {
            let Some(value) = value else { continue };
            let colour = at_places.get(place).unwrap_or(colour);
            let (left, middle, right) = share.of(place);
            let corners = [(left, y.floor()), (right, y.at(*value))];
            chart.draw_series([Rectangle::new(corners, colour.filled())])?;
            let error = bars.errors.as_ref().and_then(|errors| errors.get(place)).copied();
            if let Some(error) = error.filter(|error| *error > 0.0) {
                let ends = [*value - error, *value + error].map(|end| y.at(end));
                let ends = ends.map(|end| (middle, if end.is_finite() { end } else { y.low }));
                let style = INK.stroke_width(self.scale as u32);
                chart.draw_series([PathElement::new(ends.to_vec(), style)])?;
            }
        }
        Ok(())
    }

    fn boxes<B: DrawingBackend>(
        &self,
        chart: &mut Chart<'_, B>,
        boxes: &Boxes,
        share: Share,
        colour: &RGBColor,
    ) -> Drawn<B> {
        let (_, y) = rulers(chart);
        let thin = colour.stroke_width(self.scale as u32);
        for (place, five) in boxes.boxes.iter().enumerate() {
            let Some(Quartiles { min, q1, median, q3, max }) = five else { continue };
            let [min, q1, median, q3, max] = [min, q1, median, q3, max].map(|value| y.at(*value));
            let (left, middle, right) = share.of(place);
            let whiskers = [[(middle, min), (middle, q1)], [(middle, q3), (middle, max)]];
            chart.draw_series(whiskers.map(|ends| PathElement::new(ends.to_vec(), thin)))?;
            let body = [(left, q1), (right, q3)];
            chart.draw_series([Rectangle::new(body, colour.mix(0.35).filled())])?;
            chart.draw_series([Rectangle::new(body, thin)])?;
            let bold = colour.stroke_width(self.px(2) as u32);
            chart.draw_series([PathElement::new(vec![(left, median), (right, median)], bold)])?;
        }
        Ok(())
    }

    fn heat<B: DrawingBackend>(
        &self,
        chart: &mut Chart<'_, B>,
        values: &[Vec<Option<f64>>],
    ) -> Drawn<B> {
        let (low, high, parted) = self.range();
        for (row, cells) in values.iter().enumerate() {
            let drawn = cells.iter().enumerate().filter_map(|(column, value)| {
                let colour = colour::heat(((*value)? - low) / (high - low), parted);
                let (x, y) = (column as f64, row as f64);
                Some(Rectangle::new([(x - 0.5, y - 0.5), (x + 0.5, y + 0.5)], colour.filled()))
            });
            chart.draw_series(drawn)?;
        }
        self.partitions(chart, values)
    }

    /// Lines between the groups of a heat map's places, as far as there are cells on both sides.
    fn partitions<B: DrawingBackend>(
        &self,
        chart: &mut Chart<'_, B>,
        values: &[Vec<Option<f64>>],
    ) -> Drawn<B> {
        let style = WHITE.stroke_width(self.px(2) as u32);
        let columns = values.iter().map(Vec::len).max().unwrap_or(0);
        let upright = self.figure.x.groups.iter().filter(|&&place| place < columns);
        let upright = upright.map(|&place| {
            let x = place as f64 - 0.5;
            vec![(x, -0.5), (x, values.len() as f64 - 0.5)]
        });
        let level = self.figure.y.groups.iter().filter(|&&place| place < values.len());
        let level = level.map(|&place| {
            let y = place as f64 - 0.5;
            vec![(-0.5, y), (columns as f64 - 0.5, y)]
        });
        let lines: Vec<_> = upright.chain(level).collect();
        chart.draw_series(lines.into_iter().map(|ends| PathElement::new(ends, style)))?;
        Ok(())
    }

    /// The colour scale beside a heat map, with its meaning.
    pub(super) fn scale_of_colours<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
    ) -> Drawn<B> {
        const STEPS: i32 = 120;
        let (low, high, parted) = self.range();
        let (_, height) = area.dim_in_pixel();
        let (top, bottom) = (self.px(8), height as i32 - self.px(62));
        let at = |share: f64| bottom - (f64::from(bottom - top) * share.clamp(0.0, 1.0)) as i32;
        for step in 0..STEPS {
            let (from, to) =
                (f64::from(step) / f64::from(STEPS), f64::from(step + 1) / f64::from(STEPS));
            let corners = [(0, at(to)), (self.px(14), at(from))];
            area.draw(&Rectangle::new(corners, colour::heat(from, parted).filled()))?;
        }
        for (value, _) in steps(low, high, 5) {
            let y = at((value - low) / (high - low));
            let text = number(value, (high - low) / 5.0);
            area.draw_text(&text, &self.font(13, INK), (self.px(20), y - self.px(7)))?;
        }
        let Marks::Heat { legend, .. } = &self.figure.marks else { return Ok(()) };
        // Under the chart's right end, where there is room only to the left.
        let text = super::shortened(&format!("colour: {legend}"), 60);
        let font = self.font(13, FAINT);
        let (width, _) = area.estimate_text_size(&text, &font)?;
        let x = area.dim_in_pixel().0 as i32 - self.px(16) - width as i32;
        // In a narrow picture the axis' name is there.
        let y = if self.is_matrix() { -self.px(26) } else { height as i32 - self.px(28) };
        area.draw_text(&text, &font, (x, y))
    }
}

/// A series' share of the width at each place.
#[derive(Clone, Copy)]
struct Share {
    i: usize,
    of: usize,
}

impl Share {
    /// Left end, middle and right end at a place.
    fn of(self, place: usize) -> (f64, f64, f64) {
        let width = 0.8 / self.of as f64;
        let left = place as f64 - 0.4 + width * self.i as f64;
        (left + 0.05 * width, left + 0.5 * width, left + 0.95 * width)
    }
}

/// A curve between its gaps.
fn pieces<B: DrawingBackend>(line: &Line, chart: &Chart<'_, B>) -> Vec<Vec<(f64, f64)>> {
    let (x, y) = rulers(chart);
    let points: Vec<Option<(f64, f64)>> = line
        .x
        .iter()
        .zip(&line.y)
        .map(|(at, height)| Some((x.at(*at), y.at((*height)?))))
        .collect();
    let pieces = points.split(Option::is_none).filter(|piece| !piece.is_empty());
    pieces.map(|piece| piece.iter().copied().flatten().collect()).collect()
}

/// Every other stretch of a curve, a sixtieth of the chart's width each.
fn dashes(piece: &[(f64, f64)], (x, y): &(Ruler, Ruler)) -> Vec<Vec<(f64, f64)>> {
    const DASHES: f64 = 60.0;
    let (width, height) = (x.high - x.low, y.high - y.low);
    let mut dashes: Vec<Vec<(f64, f64)>> = Vec::new();
    let mut walked = 0.0;
    for ends in piece.windows(2) {
        let ((x0, y0), (x1, y1)) = (ends[0], ends[1]);
        let length = ((x1 - x0) / width).hypot((y1 - y0) / height / 2.0) * DASHES;
        let parts = (length * 4.0).ceil().clamp(1.0, 400.0);
        for part in 0..parts as u32 {
            let (from, to) = (f64::from(part) / parts, f64::from(part + 1) / parts);
            let at = |share: f64| (x0 + (x1 - x0) * share, y0 + (y1 - y0) * share);
            if (walked + length * from) % 2.0 < 1.0 {
                dashes.push(vec![at(from), at(to)]);
            }
        }
        walked += length;
    }
    dashes
}
