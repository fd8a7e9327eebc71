package files

import (
	"io/fs"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// fdPath reaches a descriptor by name, which reopens an O_PATH one.
func fdPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// versionOf identifies a state of a file. A replaced file has another inode,
// one written in place another time of change, which no program can set back.
// Two writes of the same size within one tick of the kernel's clock (from 4 ms
// to nanoseconds, as the kernel has it) look the same.
func versionOf(st *unix.Stat_t) string {
	b := make([]byte, 0, 64)
	for i, n := range [...]uint64{st.Ino, uint64(st.Size), uint64(st.Mtim.Nano()), uint64(st.Ctim.Nano())} {
		if i > 0 {
			b = append(b, '-')
		}
		b = strconv.AppendUint(b, n, 36)
	}
	return string(b)
}

var typeNames = map[uint32]string{
	unix.S_IFREG:  wire.TypeFile,
	unix.S_IFDIR:  wire.TypeDirectory,
	unix.S_IFLNK:  wire.TypeSymlink,
	unix.S_IFIFO:  wire.TypeFIFO,
	unix.S_IFSOCK: wire.TypeSocket,
	unix.S_IFBLK:  wire.TypeDevice,
	unix.S_IFCHR:  wire.TypeCharDev,
}

func timeOf(st *unix.Stat_t) time.Time { return time.Unix(st.Mtim.Unix()).UTC() }

func entryOf(path, target string, st *unix.Stat_t, n namer) *wire.Entry {
	e := &wire.Entry{
		Type:    typeNames[st.Mode&unix.S_IFMT],
		Size:    st.Size,
		Mode:    strconv.FormatUint(uint64(st.Mode&0o7777), 8),
		Owner:   n.owner(st.Uid),
		Group:   n.group(st.Gid),
		ModTime: timeOf(st),
		Version: versionOf(st),
	}
	if e.Type == "" {
		e.Type = wire.TypeDevice
	}
	e.Path, e.PathB64 = wire.SplitText(path)
	e.Target, e.TargetB64 = wire.SplitText(target)
	return e
}

// lstat looks at one name of an open directory, without following it.
func lstat(dir int, base string) (st *unix.Stat_t, target string, err error) {
	st = new(unix.Stat_t)
	if err := fstatat(dir, base, st); err != nil {
		return nil, "", err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		target, err = readlink(dir, base)
	}
	return st, target, err
}

// entryFd describes what a descriptor stands for.
func entryFd(fd int, path string, n namer) (*wire.Entry, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	target := ""
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		var err error
		if target, err = readlink(fd, ""); err != nil {
			return nil, err
		}
	}
	return entryOf(path, target, &st, n), nil
}

func fstatat(dir int, base string, st *unix.Stat_t) error {
	for {
		err := unix.Fstatat(dir, base, st, unix.AT_SYMLINK_NOFOLLOW)
		if err != unix.EINTR {
			return err
		}
	}
}

// modeOf translates type and bits.
func modeOf(st *unix.Stat_t) fs.FileMode {
	m := fs.FileMode(st.Mode & 0o777)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		m |= fs.ModeDir
	case unix.S_IFLNK:
		m |= fs.ModeSymlink
	case unix.S_IFREG:
	default:
		m |= fs.ModeIrregular
	}
	if st.Mode&unix.S_ISUID != 0 {
		m |= fs.ModeSetuid
	}
	if st.Mode&unix.S_ISGID != 0 {
		m |= fs.ModeSetgid
	}
	if st.Mode&unix.S_ISVTX != 0 {
		m |= fs.ModeSticky
	}
	return m
}
