//! The order of work: first one pass that all diagnostics watch, then the passes that some of them make alone, those with
//! the fewest first.

use super::diagnostic::{Diagnostic, Models};
use super::error::DiagnoseError;
use super::journal::{Begun, Done, Entry, Journal};
use super::kind::Kind;
use super::observer::Observer;
use super::summary::Summary;
use super::watch::watch;
use super::{Diagnosis, Options, diagnostics};
use crate::Samples;
use burn::module::Module;
use hadal_model::{Decoder, Variant};
use hadal_residual::Signal;
use std::path::Path;

/// Where the findings of a model are written down.
pub(crate) struct Notes<'a> {
    pub(crate) journal: &'a mut Journal,
    pub(crate) place: &'a Path,
}

/// A diagnostic at work.
struct Work {
    kind: Kind,
    diagnostic: Box<dyn Diagnostic>,
}

/// A diagnosis on its way.
struct Way<'a> {
    notes: Option<Notes<'a>>,
    /// What was found, if nothing is written down.
    entry: Entry,
    observer: &'a mut dyn Observer,
    /// Passes.
    done: usize,
    all: usize,
}

impl Way<'_> {
    fn entry(&mut self) -> &mut Entry {
        let own = &mut self.entry;
        match &mut self.notes {
            Some(notes) => notes.journal.entry(notes.place).unwrap_or(own),
            None => own,
        }
    }

    /// Counts passes, and says whether to go on.
    fn passed(&mut self, passes: usize) -> bool {
        self.done += passes;
        self.observer.passed(self.done, self.all);
        !self.observer.stops()
    }

    /// These diagnostics are done. What is the last goes into figures at once.
    fn finish(&mut self, works: Vec<Work>, last: bool) -> Result<(), DiagnoseError> {
        let mut kinds = Vec::new();
        for Work { kind, diagnostic } in works {
            let mut told = Summary::default();
            diagnostic.tell(&mut told);
            let figures = diagnostic.figures();
            if !figures.is_empty() {
                kinds.push(kind);
            }
            let entry = self.entry();
            entry.done.push(Done { kind, figures, told });
            entry.begun.take_if(|begun| begun.kind == kind);
        }
        if !kinds.is_empty() {
            self.observer.finished(&kinds);
        }
        if last { Ok(()) } else { self.keep() }
    }

    fn keep(&mut self) -> Result<(), DiagnoseError> {
        match &mut self.notes {
            Some(notes) => notes.journal.keep(),
            None => Ok(()),
        }
    }

    /// Where a diagnostic stands in its own passes.
    fn remember(&mut self, work: &Work, passes: usize, now: bool) -> Result<(), DiagnoseError> {
        let due = now || self.notes.as_mut().is_some_and(|notes| notes.journal.is_due());
        if !due || passes == 0 {
            return Ok(());
        }
        if let Some(saved) = work.diagnostic.save() {
            self.entry().begun = Some(Begun { kind: work.kind, passes, saved });
            self.keep()?;
        }
        Ok(())
    }
}

/// Diagnoses a model, which must be on a device with autodiff. `None` if it was stopped.
pub(crate) fn look(
    decoder: &Decoder,
    variant: Variant,
    samples: &Samples,
    options: &Options,
    notes: Option<Notes>,
    observer: &mut dyn Observer,
) -> Result<Option<Diagnosis>, DiagnoseError> {
    let plain = decoder.valid();
    let models = Models { learning: decoder, plain: &plain, variant };
    let batches = samples.batches(options.batches);
    let mut way = Way { notes, entry: Entry::default(), observer, done: 0, all: 0 };
    let all = diagnostics(&plain, variant, samples, options);
    let kinds: Vec<Kind> = all.iter().map(|(kind, _)| *kind).collect();
    let mut works: Vec<Work> = all
        .into_iter()
        .filter(|(kind, _)| way.entry().done(*kind).is_none())
        .map(|(kind, diagnostic)| Work { kind, diagnostic })
        .collect();
    let seen = |work: &Work| Signal::ALL.iter().any(|&signal| work.diagnostic.wants(signal));
    let watched = way.entry().loss.is_none() || works.iter().any(seen);
    let own: usize = works.iter().map(|work| work.diagnostic.passes()).sum();
    way.all = batches * (own + usize::from(watched));

    if watched && !watch_all(&mut way, models, samples, batches, &mut works)? {
        return Ok(None);
    }
    let (mut alone, finished): (Vec<Work>, _) =
        works.into_iter().partition(|work| work.diagnostic.passes() > 0);
    way.finish(finished, alone.is_empty())?;
    alone.sort_by_key(|work| work.diagnostic.passes());
    while !alone.is_empty() {
        if way.observer.stops() {
            return Ok(None);
        }
        let mut work = alone.remove(0);
        if !ask(&mut way, models, samples, batches, &mut work)? {
            return Ok(None);
        }
        way.finish(vec![work], alone.is_empty())?;
    }
    Ok(Some(found(&mut way, &kinds, decoder, samples, batches)?))
}

/// The pass that all diagnostics watch. False if it was stopped.
fn watch_all(
    way: &mut Way,
    models: Models,
    samples: &Samples,
    batches: usize,
    works: &mut [Work],
) -> Result<bool, DiagnoseError> {
    let mut loss = 0.0;
    for index in 0..batches {
        let batch = samples.batch(index)?;
        let mut all: Vec<&mut dyn Diagnostic> = Vec::new();
        for work in &mut *works {
            all.push(work.diagnostic.as_mut());
        }
        loss += watch(models.plain, models.variant, &batch, &mut all)?;
        if !loss.is_finite() {
            return Err(DiagnoseError::NotFinite { loss });
        }
        if !way.passed(1) && index + 1 < batches {
            return Ok(false);
        }
    }
    way.entry().loss = Some(loss);
    Ok(true)
}

/// The passes that one diagnostic makes alone. False if they were stopped.
fn ask(
    way: &mut Way,
    models: Models,
    samples: &Samples,
    batches: usize,
    work: &mut Work,
) -> Result<bool, DiagnoseError> {
    let passes = work.diagnostic.passes();
    let begun = way.entry().begun.take_if(|begun| begun.kind == work.kind);
    let mut done = match begun {
        Some(begun) if begun.passes < batches * passes && work.diagnostic.restore(&begun.saved) => {
            begun.passes
        }
        _ => 0,
    };
    if done > 0 {
        way.passed(done);
    }
    for index in done / passes..batches {
        let batch = samples.batch(index)?;
        for pass in done % passes..passes {
            work.diagnostic.pass(pass, models, &batch)?;
            done += 1;
            let goes_on = way.passed(1) || done == batches * passes;
            way.remember(work, done, !goes_on)?;
            if !goes_on {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Everything that was asked for, in its order.
fn found(
    way: &mut Way,
    kinds: &[Kind],
    decoder: &Decoder,
    samples: &Samples,
    batches: usize,
) -> Result<Diagnosis, DiagnoseError> {
    let config = decoder.config();
    let mut summary = Summary {
        residual: config.residual.to_string(),
        blocks: config.n_layers,
        ..Summary::default()
    };
    let mut positions = 0;
    for index in 0..batches {
        let batch = samples.batch(index)?;
        positions += batch.positions();
        summary.sequences += batch.input.batch() as u64;
        summary.tokens += batch.input.ids().len() as u64;
    }
    let entry = way.entry();
    summary.loss = entry.loss.unwrap_or_default() / positions.max(1) as f64;
    summary.perplexity = summary.loss.exp();
    let (mut figures, mut shown) = (Vec::new(), Vec::new());
    for done in kinds.iter().filter_map(|&kind| entry.done(kind)) {
        summary.add(done.told.clone());
        figures.extend(done.figures.iter().cloned());
        shown.extend((!done.figures.is_empty()).then_some(done.kind));
    }
    Ok(Diagnosis { summary, figures, shown })
}
