use super::*;

const TOKENS: [TokenId; 4] = [7, 1, 4_000_000_000, 9];

fn config(dir: &Path, bytes: u64) -> DiskConfig {
    DiskConfig { dir: dir.to_owned(), bytes, identity: [3; 32] }
}

fn blocks() -> Blocks {
    vec![Some((0..100).collect()), None, Some(vec![5; 50])]
}

/// A folder with one file, which is whole when this returns.
fn with_one(dir: &Path) -> (Disk, PathBuf) {
    let open = || Disk::open(config(dir, 1 << 20), vec![100, 20, 50]).unwrap();
    let disk = open();
    let path = disk.path(&after(&disk.root(), &TOKENS));
    disk.store(disk.root(), &TOKENS, blocks(), true);
    drop(disk);
    (open(), path)
}

fn names(dir: &Path) -> usize {
    fs::read_dir(dir).unwrap().count()
}

#[test]
fn what_was_stored_is_there_for_the_next_process_and_for_nobody_else() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, path) = with_one(dir.path());
    assert!(path.is_file() && names(dir.path()) == 1);
    assert_eq!(disk.load(&disk.root(), &TOKENS), Some(blocks()));
    assert_eq!(disk.load(&after(&disk.root(), &[1]), &TOKENS), None, "after other tokens");
    assert_eq!(disk.load(&disk.root(), &TOKENS[..3]), None, "other tokens");
    let other = DiskConfig { identity: [4; 32], ..config(dir.path(), 1 << 20) };
    let other = Disk::open(other, vec![100, 20, 50]).unwrap();
    assert_eq!(other.load(&other.root(), &TOKENS), None, "another model");
    assert!(path.is_file());
}

#[test]
fn every_damage_is_seen_and_the_file_removed() {
    let dir = tempfile::tempdir().unwrap();
    let (_, path) = with_one(dir.path());
    let whole = fs::read(&path).unwrap();
    let flip = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        bytes
    };
    let mut damaged: Vec<Vec<u8>> = (0..whole.len()).map(flip).collect();
    damaged.extend((0..whole.len()).step_by(7).map(|len| whole[..len].to_vec()));
    damaged.extend([[&whole[..], &[0]].concat(), vec![0; 5000], Vec::new()]);
    // Right in itself, of an older version, of another group, of other tokens.
    let resigned = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = whole[..whole.len() - 32].to_vec();
        change(&mut bytes);
        let checksum = digest([&bytes]);
        [bytes, checksum.to_vec()].concat()
    };
    damaged.push(resigned(&|bytes| bytes[8] = 0));
    damaged.push(resigned(&|bytes| bytes[12] = 2));
    damaged.push(resigned(&|bytes| bytes[84] = 8));
    damaged.push(resigned(&|bytes| bytes[16] = 0));
    damaged.push(resigned(&|bytes| bytes[84 + 16] = 99));
    damaged.push(resigned(&|bytes| bytes.truncate(bytes.len() - 10)));
    damaged.push(resigned(&|bytes| bytes.extend([0; 20])));
    let disk = Disk::open(config(dir.path(), 1 << 20), vec![100, 20, 50]).unwrap();
    for (case, bytes) in damaged.into_iter().enumerate() {
        fs::write(&path, &bytes).unwrap();
        assert_eq!(disk.load(&disk.root(), &TOKENS), None, "case {case}");
        assert!(!path.exists(), "case {case}");
    }
    fs::write(&path, &whole).unwrap();
    assert_eq!(disk.load(&disk.root(), &TOKENS), Some(blocks()));
}

#[test]
fn the_folder_keeps_to_its_bound_and_to_its_own_files() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("notes.kv"), vec![0; 10_000]).unwrap();
    fs::write(dir.path().join("minfer-block-1-1.txt"), "somebody else's").unwrap();
    let each = file_len(4, [100, 50].into_iter(), 3);
    let disk = Disk::open(config(dir.path(), 3 * each), vec![100, 20, 50]).unwrap();
    let ends: Vec<Digest> = (0..6).map(|i| after(&disk.root(), &[i, 1, 2, 3])).collect();
    for i in 0..3 {
        disk.store(disk.root(), &[i, 1, 2, 3], blocks(), true);
    }
    drop(disk);
    // The first one is used again, so the others go: some room is made at a time.
    let disk = Disk::open(config(dir.path(), 3 * each), vec![100, 20, 50]).unwrap();
    disk.touch(&ends[0]);
    disk.store(disk.root(), &[3, 1, 2, 3], blocks(), true);
    let root = disk.root();
    drop(disk);
    let disk = Disk::open(config(dir.path(), 3 * each), vec![100, 20, 50]).unwrap();
    let there: Vec<bool> = ends.iter().map(|end| disk.has(end)).collect();
    assert_eq!(there, [true, false, false, true, false, false]);
    assert_eq!(names(dir.path()), 4, "others' files are left alone");
    // What never fits is not written.
    let small = Disk::open(config(dir.path(), each - 1), vec![100, 20, 50]).unwrap();
    small.store(root, &[5, 1, 2, 3], blocks(), true);
    drop(small);
    assert!(!disk.has(&ends[5]));
}

#[test]
fn what_a_process_left_unfinished_goes_after_a_while() {
    let dir = tempfile::tempdir().unwrap();
    let [old, new] =
        ["1-1", "1-2"].map(|name| dir.path().join(format!("{UNFINISHED_STEM}{name}.{UNFINISHED}")));
    for path in [&old, &new] {
        fs::write(path, "half").unwrap();
    }
    let long_ago = SystemTime::now() - 2 * UNFINISHED_AFTER;
    File::options().write(true).open(&old).unwrap().set_modified(long_ago).unwrap();
    with_one(dir.path());
    assert!(!old.exists() && new.exists());
}

#[test]
fn a_folder_that_cannot_be_written_to_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(Disk::open(config(&file, 1 << 20), vec![1]).is_err());
}

#[test]
fn two_writers_of_the_same_folder_do_not_meet() {
    let dir = tempfile::tempdir().unwrap();
    let tokens: Vec<[TokenId; 4]> = (0..40).map(|i| [i, i, i, i]).collect();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let disk = Disk::open(config(dir.path(), 1 << 20), vec![100, 20, 50]).unwrap();
                for tokens in &tokens {
                    disk.store(disk.root(), tokens, blocks(), true);
                    let loaded = disk.load(&disk.root(), tokens);
                    assert!(loaded.is_none_or(|loaded| loaded == blocks()));
                }
            });
        }
    });
    let disk = Disk::open(config(dir.path(), 1 << 20), vec![100, 20, 50]).unwrap();
    for tokens in &tokens {
        assert_eq!(disk.load(&disk.root(), tokens), Some(blocks()));
    }
    assert_eq!(names(dir.path()), tokens.len());
}
