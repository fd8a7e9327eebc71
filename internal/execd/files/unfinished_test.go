package files

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// A successor removes what is noted and has the form of an unfinished name, and
// nothing else, and follows no link to it.
func TestNotes(t *testing.T) {
	dir, state := t.TempDir(), t.TempDir()
	const name = ".astrabox-ABCDEFGHIJKLMNOPQRSTUVWXYZ.tmp"
	n := OpenNotes(state + "/d/unfinished")
	if n == nil {
		t.Fatal("no notes")
	}
	if OpenNotes(state+"/d/unfinished") != nil {
		t.Error("two daemons have the same notes")
	}
	place := func(sub string) int {
		must(t, os.MkdirAll(dir+sub, 0o755))
		fd, err := openat(unix.AT_FDCWD, dir+sub, unix.O_PATH|unix.O_DIRECTORY)
		must(t, err)
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	note := func(sub, name string) string {
		n.add(place(sub), name)
		return dir + sub + "/" + name
	}
	must(t, os.WriteFile(note("/file", name), nil, 0o600))
	must(t, os.MkdirAll(note("/staged", name)+"/new", 0o700))
	must(t, os.Mkdir(note("/emptied", name), 0o700))
	must(t, os.Symlink("../other", note("/link", name)))
	must(t, os.Mkdir(note("/used", name), 0o700))
	must(t, os.Symlink(dir+"/other", dir+"/used/"+name+"/new"))
	must(t, os.WriteFile(note("/named", "precious"), nil, 0o600))
	note("/dots", "../other/precious")
	must(t, os.Mkdir(dir+"/other", 0o755))
	must(t, os.WriteFile(dir+"/other/precious", nil, 0o600))
	note("/gone", name)
	must(t, os.Remove(dir+"/gone"))
	n.add(place("/done"), name)()
	must(t, os.WriteFile(dir+"/done/"+name, nil, 0o600))
	note("/swapped", name)
	must(t, os.Rename(dir+"/swapped", dir+"/away"))
	must(t, os.WriteFile(dir+"/away/"+name, nil, 0o600))
	must(t, os.Symlink("away", dir+"/swapped"))
	n.Close() // what is noted is kept

	if n = OpenNotes(state + "/d/unfinished"); n == nil {
		t.Fatal("no notes")
	}
	for path, there := range map[string]bool{
		"/file/" + name: false, "/staged/" + name: false, "/emptied/" + name: false, "/link/" + name: false, "/used/" + name: false,
		"/named/precious": true, "/other/precious": true, "/done/" + name: true, "/away/" + name: true,
	} {
		if _, err := os.Lstat(dir + path); there != (err == nil) {
			t.Errorf("%s: %v, want it there: %v", path, err, there)
		}
	}
	for range noteSlots + 5 { // no more than so many at once, and no harm beyond
		n.add(place("/full"), name)
	}
	must(t, n.f.Close())
	for what, spoil := range map[string]func(path string) error{
		"another's":      func(p string) error { return os.Chown(p, 4242, 4242) },
		"open to all":    func(p string) error { return os.Chmod(p, 0o666) },
		"a link":         func(p string) error { return os.Rename(p, p+"2") },
		"in an open one": func(p string) error { return os.Chmod(state+"/d", 0o777) },
	} {
		path := state + "/d/" + what
		must(t, os.WriteFile(path, nil, 0o600))
		must(t, spoil(path))
		if what == "a link" {
			must(t, os.Symlink(path+"2", path))
		}
		if OpenNotes(path) != nil {
			t.Errorf("a file that is %s is used", what)
		}
		must(t, os.Chmod(state+"/d", 0o700))
	}
	if n = OpenNotes(state + "/e/unfinished"); n == nil {
		t.Fatal("no notes")
	}
	n.add(place("/closed"), name)()
	n.Close()
	if _, err := os.Lstat(state + "/e"); err == nil {
		t.Error("an orderly end leaves the notes")
	}
	var none *Notes
	none.Close()
	none.add(place("/none"), name)()
}
