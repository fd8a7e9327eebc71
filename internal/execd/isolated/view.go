package isolated

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// badRequest is a refusal with the status and code that the older protocol has for it.
func badRequest(format string, args ...any) error {
	return refuse(http.StatusBadRequest, wire.CodeRuntime, format, args...)
}

// View is what a session sees of the files: the sandbox's, read-only and
// without setuid programs and devices, and what stands here.
type View struct {
	Workspace Bind
	// Binds come in this order, after the workspace.
	Binds []Bind
	// SharedTmp shows the sandbox's /tmp instead of an empty one.
	SharedTmp bool
	// TmpBytes bounds what an own /tmp, and /dev/shm, holds; it is memory.
	TmpBytes int64
}

// Bind shows Source, a directory or file of the sandbox, at Path.
type Bind struct {
	Source, Path string
	ReadOnly     bool
}

// outside gives the place of the sandbox that is seen at p; "": none.
func (v View) outside(p string) string {
	binds := append([]Bind{v.Workspace}, v.Binds...)
	if v.SharedTmp {
		binds = append(binds, Bind{Source: "/tmp", Path: "/tmp"})
	}
	seen := Bind{}
	for _, b := range binds {
		if b.Path != "" && within(p, b.Path) && len(b.Path) >= len(seen.Path) {
			seen = b
		}
	}
	if seen.Path == "" {
		return ""
	}
	return path.Join(seen.Source, strings.TrimPrefix(p, seen.Path))
}

// hidden are parts of /proc that tell about the machine rather than the
// session, and frozen those that would change it.
var (
	hidden = []string{
		"acpi", "asound", "cmdline", "interrupts", "kcore", "keys", "key-users", "kmsg", "latency_stats", "sched_debug", "scsi",
		"timer_list", "timer_stats", "vmallocinfo",
	}
	frozen = []string{"bus", "fs", "irq", "sys", "sysrq-trigger"}
)

var devices = []string{"null", "zero", "full", "random", "urandom", "tty"}

const runBytes = 16 << 20

// enter makes the calling process, which alone has its mount namespace, see v
// and nothing else. The working directory is / then.
func (v View) enter() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the mounts private: %w", err)
	}
	// All sources are opened before anything is covered.
	var binds []Bind
	if v.SharedTmp {
		binds = append(binds, Bind{Source: "/tmp", Path: "/tmp"})
	}
	if v.Workspace.Source != "" {
		binds = append(binds, v.Workspace)
	}
	binds = append(binds, v.Binds...)
	trees := make([]int, len(binds))
	for i, b := range binds {
		fd, err := openSource(b.Source)
		if err != nil {
			return err
		}
		attr := uint64(unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV)
		if b.ReadOnly {
			attr |= unix.MOUNT_ATTR_RDONLY
		}
		if trees[i], err = cloneTree(fd, "", attr); err != nil {
			return fmt.Errorf("%s: %w", b.Source, err)
		}
		unix.Close(fd) //nolint:errcheck // an O_PATH descriptor
	}
	devs := map[string]int{}
	for _, name := range devices {
		fd, err := cloneTree(unix.AT_FDCWD, "/dev/"+name, unix.MOUNT_ATTR_NOSUID)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return fmt.Errorf("/dev/%s: %w", name, err)
		}
		devs[name] = fd
	}
	root, err := cloneTree(unix.AT_FDCWD, "/", unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return fmt.Errorf("copy the root: %w", err)
	}
	// Any directory can carry the new root until it is the root; /proc is still needed.
	if err := unix.MoveMount(root, "", unix.AT_FDCWD, "/dev", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("attach the root: %w", err)
	}
	// A kernel shows processes in a user namespace only while the proc that was
	// there is still to be seen, so this comes before that goes.
	if err := mountAt(root, "proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return err
	}
	if err := unix.Fchdir(root); err != nil {
		return fmt.Errorf("enter the root: %w", err)
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("change the root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the root: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return err
	}
	return v.furnish(root, binds, trees, devs)
}

// furnish mounts what is the session's own, and the binds.
func (v View) furnish(root int, binds []Bind, trees []int, devs map[string]int) error {
	if err := hideProc(devs["null"]); err != nil {
		return err
	}
	if err := v.makeDev(root, devs); err != nil {
		return err
	}
	if !v.SharedTmp {
		if err := mountAt(root, "tmp", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777,size="+strconv.FormatInt(v.TmpBytes, 10)); err != nil {
			return err
		}
	}
	if err := mountAt(root, "run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755,size="+strconv.Itoa(runBytes)); err != nil {
		return err
	}
	for i, b := range binds {
		if err := attach(root, trees[i], b.Path); err != nil {
			return err
		}
	}
	for _, fd := range append([]int{root}, trees...) {
		unix.Close(fd) //nolint:errcheck // an O_PATH descriptor
	}
	for _, fd := range devs {
		unix.Close(fd) //nolint:errcheck // an O_PATH descriptor
	}
	return nil
}

// errLink is ELOOP in words that say what is wrong.
var errLink = errors.New("a part of the path is a link, and links aren't followed")

// openSource gives an O_PATH descriptor of a source. No part of its path is a
// link: whoever may replace one, such as the account of another session in its
// own workspace, must not choose what this session gets.
func openSource(path string) (int, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS,
	})
	if errors.Is(err, unix.ELOOP) {
		err = errLink
	}
	if err != nil {
		return -1, badSource(path, err)
	}
	if err := checkSource(fd, path); err != nil {
		unix.Close(fd) //nolint:errcheck // an O_PATH descriptor
		return -1, err
	}
	return fd, nil
}

// never are places that no session gets to write to or to see under another name.
var never = []string{"/boot", "/dev", "/etc", "/proc", "/sys", "/run", "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt/astrabox"}

// checkSource refuses what isn't a directory or regular file, and places of the system.
func checkSource(fd int, path string) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return badSource(path, err)
	}
	if kind := st.Mode & unix.S_IFMT; kind != unix.S_IFDIR && kind != unix.S_IFREG {
		return badSource(path, errors.New("it is neither a directory nor a regular file, and links aren't followed"))
	}
	real, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil {
		return badSource(path, err)
	}
	for _, dir := range never {
		if real == "/" || within(real, dir) || within(dir, real) {
			return badSource(path, errors.New("it is, lies in or holds a directory of the system"))
		}
	}
	return nil
}

func within(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

func badSource(path string, cause error) error {
	return badRequest("%s can't be given to a session: %v", path, cause)
}

// cloneTree gives a descriptor of a copy of the mounts at and below a path.
func cloneTree(dir int, path string, attr uint64) (int, error) {
	flags := uint(unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_RECURSIVE)
	if path == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	fd, err := unix.OpenTree(dir, path, flags)
	if err != nil {
		return -1, err
	}
	err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: attr})
	if err != nil {
		unix.Close(fd) //nolint:errcheck // an O_PATH descriptor
		return -1, err
	}
	return fd, nil
}

// target opens what a mount is to cover: path as the session sees it. resolve is
// how links are treated.
func target(root int, path string, resolve uint64) (int, error) {
	for try := 0; ; try++ {
		fd, err := unix.Openat2(root, strings.TrimLeft(path, "/"), &unix.OpenHow{
			Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | resolve,
		})
		if !errors.Is(err, unix.EAGAIN) || try == 16 { // something was renamed meanwhile
			return fd, err
		}
	}
}

// mountAt mounts a new file system at a place of the system.
func mountAt(root int, path, kind string, flags uintptr, options string) error {
	fd, err := target(root, path, unix.RESOLVE_NO_MAGICLINKS)
	if err == nil {
		err = unix.Mount(kind, "/proc/self/fd/"+strconv.Itoa(fd), kind, flags, options)
		unix.Close(fd) //nolint:errcheck // an O_PATH descriptor
	}
	if err != nil {
		return fmt.Errorf("mount %s at /%s: %w", kind, path, err)
	}
	return nil
}

// own are the places where a mount point can be made, since they are the session's.
var own = []string{"/tmp", "/run", "/dev/shm"}

// attach puts a copy of mounts at path. No part of it is a link: a workspace, or
// a /tmp that is shared, may hold one that leads to where the account of the
// session wants the mount, or a new directory, to be.
func attach(root, tree int, path string) error {
	fd, err := target(root, path, unix.RESOLVE_NO_SYMLINKS)
	if errors.Is(err, unix.ENOENT) && slices.ContainsFunc(own, func(dir string) bool { return within(path, dir) }) {
		var st unix.Stat_t
		if err = unix.Fstat(tree, &st); err == nil {
			err = mountPoint(root, path, st.Mode&unix.S_IFMT == unix.S_IFDIR)
		}
		if err == nil {
			fd, err = target(root, path, unix.RESOLVE_NO_SYMLINKS)
		}
	}
	if errors.Is(err, unix.ELOOP) {
		err = errLink
	}
	if err != nil {
		return badRequest("the session can't see anything at %s: %v (the place has to exist in the sandbox, or to lie below /tmp or /run)", path, err)
	}
	defer unix.Close(fd) //nolint:errcheck // an O_PATH descriptor
	if err := unix.MoveMount(tree, "", fd, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return badRequest("the session can't see anything at %s: %v", path, err)
	}
	return nil
}

// mountPoint makes a directory, or an empty file, with the directories that lead
// there, and follows no link.
func mountPoint(root int, path string, dir bool) error {
	at, err := unix.Openat(root, ".", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { unix.Close(at) }() //nolint:errcheck // an O_PATH descriptor
	parts := strings.Split(strings.TrimLeft(path, "/"), "/")
	last := parts[len(parts)-1]
	if !dir {
		parts = parts[:len(parts)-1]
	}
	for _, part := range parts {
		if err := unix.Mkdirat(at, part, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
		next, err := target(at, part, unix.RESOLVE_NO_SYMLINKS)
		if err != nil {
			return err
		}
		unix.Close(at) //nolint:errcheck // an O_PATH descriptor
		at = next
	}
	if dir {
		return nil
	}
	fd, err := unix.Openat(at, last, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// hideProc covers parts of the session's /proc. null is a tree of /dev/null.
func hideProc(null int) error {
	for _, name := range hidden {
		path := "/proc/" + name
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			continue // this kernel doesn't have it
		}
		var err error
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			err = unix.Mount("tmpfs", path, "tmpfs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=0,nr_inodes=1")
		} else {
			err = unix.Mount("/proc/self/fd/"+strconv.Itoa(null), path, "", unix.MS_BIND, "")
		}
		if err != nil {
			return fmt.Errorf("hide %s: %w", path, err)
		}
	}
	for _, name := range frozen {
		path := "/proc/" + name
		fd, err := cloneTree(unix.AT_FDCWD, path, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err == nil {
			err = unix.MoveMount(fd, "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH)
			unix.Close(fd) //nolint:errcheck // an O_PATH descriptor
		}
		if err != nil {
			return fmt.Errorf("freeze %s: %w", path, err)
		}
	}
	return nil
}

// makeDev makes a /dev with harmless devices and own terminals.
func (v View) makeDev(root int, devs map[string]int) error {
	if err := mountAt(root, "dev", "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=755,size=64k"); err != nil {
		return err
	}
	for name, fd := range devs {
		path := "/dev/" + name
		if err := mountPoint(root, path, false); err != nil {
			return err
		}
		if err := unix.MoveMount(fd, "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fmt.Errorf("attach %s: %w", path, err)
		}
	}
	for _, l := range [][2]string{
		{"/proc/self/fd", "fd"}, {"/proc/self/fd/0", "stdin"}, {"/proc/self/fd/1", "stdout"}, {"/proc/self/fd/2", "stderr"}, {"pts/ptmx", "ptmx"},
	} {
		if err := os.Symlink(l[0], "/dev/"+l[1]); err != nil {
			return err
		}
	}
	for _, dir := range []string{"/dev/pts", "/dev/shm"} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	const pts = "newinstance,ptmxmode=0666,mode=0620"
	err := unix.Mount("devpts", "/dev/pts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, pts+",gid=5")
	if errors.Is(err, unix.EINVAL) { // the user namespace has no such group
		err = unix.Mount("devpts", "/dev/pts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, pts)
	}
	if err != nil {
		return fmt.Errorf("mount terminals: %w", err)
	}
	if err := unix.Mount("shm", "/dev/shm", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=1777,size="+strconv.FormatInt(v.TmpBytes, 10)); err != nil {
		return fmt.Errorf("mount shared memory: %w", err)
	}
	err = unix.MountSetattr(unix.AT_FDCWD, "/dev", 0, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
	if err != nil {
		return fmt.Errorf("make /dev read-only: %w", err)
	}
	return nil
}
