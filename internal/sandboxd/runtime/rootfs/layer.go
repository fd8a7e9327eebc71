package rootfs

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Layers are the writable directories of one sandbox of the host image, below
// one directory: root for / and usr for /usr. Two are needed, since an overlay
// doesn't look through mounts below its lower layer.
type Layers struct{ Dir string }

var layerDirs = []string{"root", "root.work", "usr", "usr.work"}

// Make makes the directories for a sandbox with the ids of r. Dir must not exist.
func (l Layers) Make(r Range) error {
	if err := os.Mkdir(l.Dir, 0o700); err != nil {
		return err
	}
	for _, name := range layerDirs {
		dir := filepath.Join(l.Dir, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		// The process's umask must not decide what the sandbox's / lets through.
		if err := os.Chmod(dir, 0o755); err != nil {
			return err
		}
		if err := os.Lchown(dir, r.Base(), r.Base()); err != nil {
			return err
		}
	}
	return nil
}

// Range tells whose the layers are.
func (l Layers) Range() (Range, error) { return RangeOfOwner(filepath.Join(l.Dir, "root")) }

// Mount mounts the sandbox's root on target, an existing empty directory:
// skeleton and, at /usr, the machine's own. After an error nothing is mounted.
func (l Layers) Mount(skeleton, target string, userns *os.File) error {
	root := Overlay{Lower: []string{skeleton}, Upper: filepath.Join(l.Dir, "root"), Work: filepath.Join(l.Dir, "root.work"), Target: target}
	if err := root.Mount(userns); err != nil {
		return err
	}
	usr := Overlay{Lower: []string{filepath.Join(skeleton, "usr"), "/usr"}, Upper: filepath.Join(l.Dir, "usr"), Work: filepath.Join(l.Dir, "usr.work"), Target: filepath.Join(target, "usr")}
	// The sandbox may have replaced its own /usr by a link in an earlier run.
	if fi, err := os.Lstat(usr.Target); err != nil || !fi.IsDir() {
		closeAll(Detach(target))
		return fmt.Errorf("the sandbox's /usr is no directory any more")
	}
	if err := usr.Mount(userns); err != nil {
		closeAll(Detach(target))
		return err
	}
	return nil
}

// Unmount takes away what Mount mounted, whichever part of it is there.
func Unmount(target string) ([]Detached, error) {
	mounts, err := MountsUnder(target)
	if err != nil {
		return nil, err
	}
	var all []Detached
	for i := len(mounts) - 1; i >= 0; i-- {
		d, err := Detach(mounts[i])
		all = append(all, d...)
		if err != nil {
			return all, err
		}
	}
	return all, nil
}

// Clone copies the tree of mounts on target and returns the copy, which is
// nowhere to be seen and lives as long as the handle. Attach puts it back.
// Nothing mounted: an error.
func Clone(target string) (*os.File, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, target, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return nil, fmt.Errorf("copy the mounts on %s: %w", target, err)
	}
	return os.NewFile(uintptr(fd), "mounts"), nil
}

// Attach mounts a tree from Clone on target and closes the handle.
func Attach(tree *os.File, target string) error {
	defer tree.Close()
	if err := unix.MoveMount(int(tree.Fd()), "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount on %s: %w", target, err)
	}
	return nil
}

func closeAll(ds []Detached, _ error) {
	for _, d := range ds {
		d.Close()
	}
}

// Probe tries what Mount does in a directory below dir, without leaving a
// mount even if the process is killed. The error says what the kernel refused.
func Probe(dir string) error {
	tmp, err := os.MkdirTemp(dir, ".probe-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	l := Layers{Dir: filepath.Join(tmp, "layers")}
	if err := l.Make(0); err != nil {
		return err
	}
	lower := filepath.Join(tmp, "lower")
	if err := os.Mkdir(lower, 0o755); err != nil {
		return err
	}
	ns, err := newUserNamespace(0)
	if err != nil {
		return err
	}
	defer ns.Close()
	for _, o := range []Overlay{
		{Lower: []string{lower}, Upper: filepath.Join(l.Dir, "root"), Work: filepath.Join(l.Dir, "root.work")},
		{Lower: []string{"/usr"}, Upper: filepath.Join(l.Dir, "usr"), Work: filepath.Join(l.Dir, "usr.work")},
	} {
		mnt, err := o.Open(ns)
		if err != nil {
			return err
		}
		err = unix.Mkdirat(int(mnt.Fd()), ".probe", 0o700)
		mnt.Close()
		if err != nil {
			return fmt.Errorf("write through an overlay: %w", err)
		}
	}
	return nil
}
