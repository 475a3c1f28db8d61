//! A diagnosis that is interrupted anywhere ends with the same numbers.

use super::*;
use hadal_residual::StepMode;

fn subject(residual: &str, place: &str) -> Subject {
    Subject {
        name: "model".into(),
        path: place.into(),
        step: None,
        decoder: fresh(&config(residual, 2)),
        config: None,
        mode: StepMode::default(),
        absent: Vec::new(),
    }
}

fn begin(
    out: &Path,
    subject: &Subject,
    samples: &Samples,
    told: &mut Told,
) -> (Option<Diagnosis>, Journal) {
    let mut journal = Journal::open(out);
    let options = Options { batches: Some(2), only: Vec::new() };
    let found = diagnose(subject, samples, &options, &mut journal, told).unwrap();
    (found, journal)
}

/// Two batches.
fn data() -> Samples<'static> {
    samples(80, 31)
}

#[test]
fn an_interruption_after_any_pass_changes_no_number() {
    let directory = tempfile::tempdir().unwrap();
    for residual in ["nag", "mgr:streams=2"] {
        let subject = subject(residual, residual);
        let mut told = Told::default();
        let (whole, _) = begin(&directory.path().join("whole"), &subject, &data(), &mut told);
        let passes = told.passes.len();
        assert!(passes > 15, "{passes}");
        for most in (1..passes).step_by(3) {
            let out = directory.path().join(format!("{residual}-{most}"));
            let mut told = Told { most: Some(most), ..Told::default() };
            let (found, journal) = begin(&out, &subject, &data(), &mut told);
            assert!(found.is_none(), "{most}");
            // Something was finished after the first stage, and it says so.
            assert_eq!(journal.words().is_empty(), most < 2, "{most}");
            assert_eq!(journal.path().exists(), most > 1, "{most}");
            let mut told = Told::default();
            let (found, journal) = begin(&out, &subject, &data(), &mut told);
            assert!(most < 2 || told.notes[0].starts_with("goes on"), "{:?}", told.notes);
            assert!(told.passes.len() <= passes, "{most}: {} passes", told.passes.len());
            assert_eq!(found, whole, "{residual}, interrupted after {most}");
            let path = journal.path().to_owned();
            journal.finish(&Kind::ALL).unwrap();
            assert!(!path.exists());
        }
    }
}

/// Those whose passes are many, one after another, with what each has to keep of a batch.
#[test]
fn each_kind_of_pass_goes_on_where_it_stopped() {
    let directory = tempfile::tempdir().unwrap();
    let subject = subject("hc:streams=2", "hc");
    let only = vec![Kind::Causal, Kind::Permutation, Kind::Usefulness, Kind::Surgery, Kind::Rescue];
    let options = Options { batches: Some(2), only };
    let look = |out: &str, told: &mut Told| {
        let mut journal = Journal::open(&directory.path().join(out));
        diagnose(&subject, &data(), &options, &mut journal, told).unwrap()
    };
    let mut told = Told::default();
    let whole = look("whole", &mut told).unwrap();
    assert_eq!(whole.shown.len(), 5, "{:?}", whole.summary.refused);
    let passes = told.passes.len();
    assert!(passes > 60, "{passes}");
    for most in (3..passes).step_by(5) {
        let out = most.to_string();
        assert!(look(&out, &mut Told { most: Some(most), ..Told::default() }).is_none());
        assert_eq!(look(&out, &mut Told::default()).as_ref(), Some(&whole), "after {most}");
    }
}

#[test]
fn what_was_done_is_not_done_again() {
    let directory = tempfile::tempdir().unwrap();
    let subject = subject("prenorm", "a");
    let mut all = Told::default();
    begin(&directory.path().join("whole"), &subject, &data(), &mut all);
    let most = all.passes.len() - 3;
    let mut told = Told { most: Some(most), ..Told::default() };
    begin(directory.path(), &subject, &data(), &mut told);
    assert!(told.kinds.contains(&Kind::Gradients) && !told.kinds.contains(&Kind::Removal));
    let mut told = Told::default();
    begin(directory.path(), &subject, &data(), &mut told);
    assert_eq!(told.kinds, [Kind::Removal]);
    // The three that were missing, and one that says how many there were.
    assert_eq!(told.passes.len(), 4, "{:?}", told.passes);
}

#[test]
fn another_model_other_data_or_other_settings_begin_anew() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path();
    let stop = || Told { most: Some(4), ..Told::default() };
    let interrupt = || begin(out, &subject("prenorm", "a"), &data(), &mut stop());
    let differs = |subject: &Subject, samples: &Samples, words: &str| {
        interrupt();
        let mut told = Told::default();
        let found = begin(out, subject, samples, &mut told).0;
        assert!(told.notes.len() == 1 && told.notes[0].contains(words), "{:?}", told.notes);
        let fresh = directory.path().join("fresh");
        assert_eq!(found, begin(&fresh, subject, samples, &mut Told::default()).0);
        fs::remove_dir_all(fresh).ok();
    };
    differs(&subject("postnorm", "a"), &data(), "another model");
    differs(&subject("prenorm", "a"), &samples(80, 30), "other data");
    let mut without = subject("prenorm", "a");
    without.leave_out(&["1".parse().unwrap()]).unwrap();
    differs(&without, &data(), "other settings");
    // Another place: nothing of it stays.
    interrupt();
    let mut journal = Journal::open(out);
    assert_eq!(journal.only(&["b".into()]), [PathBuf::from("a")]);
    assert!(journal.words().is_empty());
    // What cannot be read is as good as nothing.
    interrupt();
    fs::write(out.join("about/progress.json"), "{").unwrap();
    assert!(Journal::open(out).words().is_empty());
}

#[test]
fn what_was_not_asked_for_stays() {
    let directory = tempfile::tempdir().unwrap();
    let subject = subject("prenorm", "a");
    let mut told = Told { most: Some(6), ..Told::default() };
    begin(directory.path(), &subject, &data(), &mut told);
    let mut journal = Journal::open(directory.path());
    let options = Options { batches: Some(2), only: vec![Kind::Sink] };
    let mut told = Told::default();
    let found = diagnose(&subject, &data(), &options, &mut journal, &mut told).unwrap().unwrap();
    assert_eq!((found.figures.len(), told.passes.len()), (1, 0));
    assert_eq!(found.summary.norm_growth, None);
    journal.finish(&options.kinds()).unwrap();
    let words = Journal::open(directory.path()).words();
    assert!(words.contains(&"output".to_owned()) && !words.contains(&"sink".to_owned()));
}
