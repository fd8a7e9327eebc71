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
	Binds     []Bind
	// SharedTmp shows the sandbox's /tmp instead of an empty one.
	SharedTmp bool
	// TmpBytes bounds what an own /tmp, and /dev/shm, holds; it is memory.
	TmpBytes int64
	// OwnNet says that the network is the session's own, so that /sys is not to
	// show the sandbox's.
	OwnNet bool
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
	// What lies in another comes after it.
	slices.SortStableFunc(binds, func(a, b Bind) int { return len(a.Path) - len(b.Path) })
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
		trees[i], err = cloneTree(fd, "", attr)
		unix.Close(fd) //nolint:errcheck // an O_PATH descriptor
		if err != nil {
			return badSource(b.Source, err)
		}
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
	var network map[string]int
	if v.OwnNet { // the same goes for sysfs
		if network, err = ownNetwork(root); err != nil {
			return err
		}
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
	return v.furnish(root, binds, trees, devs, network)
}

// furnish mounts what is the session's own, and the binds.
func (v View) furnish(root int, binds []Bind, trees []int, devs, network map[string]int) error {
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
	if v.OwnNet {
		if err := showNetwork(network); err != nil {
			return err
		}
	}
	memory, err := v.memory()
	if err != nil {
		return err
	}
	for i, b := range binds {
		if err := attach(root, trees[i], b.Path, memory); err != nil {
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

// errLink says what ELOOP means: which part of a path is a link, and what to say
// instead.
func errLink(p string) error {
	for end := 1; end <= len(p); end++ {
		if end < len(p) && p[end] != '/' {
			continue
		}
		to, err := os.Readlink(p[:end])
		if err != nil {
			continue
		}
		if !path.IsAbs(to) {
			to = path.Join(path.Dir(p[:end]), to)
		}
		return fmt.Errorf("%s is a link, and links aren't followed; give %s, if that is what is meant", p[:end], path.Join(to, p[end:]))
	}
	return errors.New("a part of the path is a link, and links aren't followed")
}

// openSource gives an O_PATH descriptor of a source. No part of its path is a
// link: whoever may replace one, such as the account of another session in its
// own workspace, must not choose what this session gets.
func openSource(path string) (int, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS,
	})
	if errors.Is(err, unix.ELOOP) {
		err = errLink(path)
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

// memory gives the devices of the file systems where a mount point can be made:
// they are the session's own, and go with it.
func (v View) memory() (devices []uint64, err error) {
	own := []string{"/run", "/dev/shm"}
	if !v.SharedTmp {
		own = append(own, "/tmp")
	}
	for _, dir := range own {
		var st unix.Stat_t
		if err := unix.Stat(dir, &st); err != nil {
			return nil, fmt.Errorf("%s: %w", dir, err)
		}
		devices = append(devices, st.Dev)
	}
	return devices, nil
}

// attach puts a copy of mounts at path. No part of it is a link: a workspace, or
// a /tmp that is shared, may hold one that leads to where the account of the
// session wants the mount, or a new directory, to be. Where there is no such
// place it is made, on one of the devices of memory.
func attach(root, tree int, path string, memory []uint64) error {
	dir, err := isDir(tree)
	if err != nil {
		return err
	}
	fd, err := target(root, path, unix.RESOLVE_NO_SYMLINKS)
	if errors.Is(err, unix.ENOENT) {
		err = mountPoint(root, path, dir, memory)
		if err == nil {
			fd, err = target(root, path, unix.RESOLVE_NO_SYMLINKS)
		}
	}
	if errors.Is(err, unix.ELOOP) {
		err = errLink(path)
	}
	if err != nil {
		return badRequest("the session can't see anything at %s: %v (the place has to exist in the sandbox, or to lie below the session's own /tmp, /run or /dev/shm)", path, err)
	}
	defer unix.Close(fd) //nolint:errcheck // an O_PATH descriptor
	if there, err := isDir(fd); err != nil || there != dir {
		return badRequest("the session can't see anything at %s: one of it and what is to be seen there is a directory, and the other is not a directory", path)
	}
	if err := unix.MoveMount(tree, "", fd, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return badRequest("the session can't see anything at %s: %v", path, err)
	}
	return nil
}

func isDir(fd int) (bool, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	return st.Mode&unix.S_IFMT == unix.S_IFDIR, err
}

// mountPoint makes a directory, or an empty file, with the directories that lead
// there, and follows no link. All that it makes is on one of the devices.
func mountPoint(root int, path string, dir bool, devices []uint64) error {
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
		next, err := target(at, part, unix.RESOLVE_NO_SYMLINKS)
		if errors.Is(err, unix.ENOENT) {
			if err = on(at, devices); err == nil {
				err = unix.Mkdirat(at, part, 0o755)
			}
			if err == nil {
				next, err = target(at, part, unix.RESOLVE_NO_SYMLINKS)
			}
		}
		if err != nil {
			return err
		}
		unix.Close(at) //nolint:errcheck // an O_PATH descriptor
		at = next
	}
	if dir {
		return nil
	}
	if err := on(at, devices); err != nil {
		return err
	}
	fd, err := unix.Openat(at, last, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// on refuses a directory that is on none of the devices, with what its missing
// entry means.
func on(dir int, devices []uint64) error {
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil {
		return err
	}
	if !slices.Contains(devices, st.Dev) {
		return unix.ENOENT
	}
	return nil
}
