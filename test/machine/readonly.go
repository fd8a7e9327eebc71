package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// ReadOnly runs the calling test program on in a mount namespace of its own, in
// which every mount is read-only: what is left are a directory for temporary
// files that only such tests use, those that go test and go build want files in,
// /proc and the terminals. It is called first in TestMain, and returns in the
// namespace; where that can't be had (it takes root and Linux 5.12) it says so
// and returns all the same, so tests that must not run otherwise call
// [NeedReadOnly].
//
// The program replaces itself, so it keeps its pid, descriptors and arguments.
func ReadOnly() {
	if os.Geteuid() != 0 || readOnly() {
		return
	}
	// The thread's namespace becomes that of the program that it executes.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	temp, err := ownTemp()
	if err == nil {
		err = isolate(append(goTests(os.Args[1:]), temp))
	}
	if err == nil {
		err = os.Setenv("TMPDIR", temp)
	}
	if err == nil {
		err = unix.Exec("/proc/self/exe", os.Args, os.Environ())
	}
	fmt.Fprintln(os.Stderr, "the machine isn't read-only for these tests:", err)
}

// readOnly says whether the root directory is.
func readOnly() bool {
	var st unix.Statfs_t
	return unix.Statfs("/", &st) == nil && st.Flags&unix.ST_RDONLY != 0
}

// ownTemp gives the directory for temporary files. It outlives the program,
// which can't unmount what it runs in; the tests empty it.
func ownTemp() (string, error) {
	dir := filepath.Join(os.TempDir(), "astrabox-tests")
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return "", os.NewSyscallError("lstat", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Uid != 0 || st.Mode&0o022 != 0 {
		return "", fmt.Errorf("%s isn't a directory that root alone writes to", dir)
	}
	return dir, nil
}

// goTests gives the directories that go test, and the builds that tests make,
// want files in.
func goTests(args []string) []string {
	var dirs []string
	if cache := os.Getenv("GOCACHE"); filepath.IsAbs(cache) {
		dirs = append(dirs, cache)
	} else if caches, err := os.UserCacheDir(); err == nil {
		dirs = append(dirs, filepath.Join(caches, "go-build"))
	}
	for _, arg := range args {
		name, value, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		switch name {
		case "test.testlogfile", "test.coverprofile":
			dirs = append(dirs, filepath.Dir(value))
		case "test.gocoverdir", "test.outputdir", "test.fuzzcachedir":
			dirs = append(dirs, value)
		case "test.fuzz":
			dirs = append(dirs, "testdata") // where a failing input is kept
		}
	}
	return dirs
}

// OwnMounts runs the calling test program on in a mount namespace of its own, as
// [ReadOnly] does, but with everything as writable as it was: for tests of code
// that mounts. Without the right to it the program runs on where it is.
func OwnMounts() {
	if os.Geteuid() != 0 || os.Getenv(ownMounts) != "" {
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := unshare()
	if err == nil {
		err = os.Setenv(ownMounts, "1")
	}
	if err == nil {
		err = unix.Exec("/proc/self/exe", os.Args, os.Environ())
	}
	fmt.Fprintln(os.Stderr, "these tests have no mount namespace of their own:", err)
}

// ownMounts marks the program that runs in it.
const ownMounts = "ASTRABOX_TEST_OWN_MOUNTS"

// unshare gives the calling thread a mount namespace of which nothing is seen
// outside.
func unshare() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	return os.NewSyscallError("mount", unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
}

// isolate gives the calling thread a namespace in which only dirs are writable.
// The error names the step that failed; the thread is then still usable for
// tests, with more or fewer mounts.
func isolate(dirs []string) error {
	if err := unshare(); err != nil {
		return err
	}
	var own []string
	for _, dir := range dirs {
		dir, err := filepath.Abs(dir)
		if err == nil {
			err = os.MkdirAll(dir, 0o755)
		}
		if err == nil {
			dir, err = filepath.EvalSymlinks(dir)
		}
		if err == nil && dir == "/" {
			err = fmt.Errorf("%s can't be left writable", dir)
		}
		if err == nil {
			err = os.NewSyscallError("mount", unix.Mount(dir, dir, "", unix.MS_BIND|unix.MS_REC, ""))
		}
		if err != nil {
			return err
		}
		own = append(own, dir)
	}
	set := func(path string, flags uint, attr *unix.MountAttr) error {
		return os.NewSyscallError("mount_setattr", unix.MountSetattr(unix.AT_FDCWD, path, flags, attr))
	}
	if err := set("/", unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
		return err
	}
	for _, dir := range append(own, "/proc", "/dev/pts") {
		if err := set(dir, 0, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}); err != nil && dir != "/dev/pts" {
			return err
		}
	}
	// The working directory may lie below one that was mounted again.
	wd, err := os.Getwd()
	if err == nil {
		err = os.Chdir(wd)
	}
	return err
}
