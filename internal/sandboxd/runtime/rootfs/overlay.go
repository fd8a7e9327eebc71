package rootfs

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Overlay is one overlay mount.
type Overlay struct {
	// Lower are absolute directories, the topmost first.
	Lower []string
	// Upper and Work are directories of one file system that exist. Their owner
	// is root of the sandbox's Range.
	Upper, Work string
	// Target is the existing directory to mount on.
	Target string
}

// Mount mounts o on its target. The lower layers are seen through the id map
// of userns, so that what root owns on this machine is root's in the sandbox.
// The upper layer holds ids of this machine: overlayfs can't write through a map.
func (o Overlay) Mount(userns *os.File) error {
	mnt, err := o.Open(userns)
	if err != nil {
		return err
	}
	defer mnt.Close()
	if err := unix.MoveMount(int(mnt.Fd()), "", unix.AT_FDCWD, o.Target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("overlay: mount on %s: %w", o.Target, err)
	}
	return nil
}

// Open is Mount without a place in the tree: the mount lives as long as the
// descriptor, whose directory is its root.
func (o Overlay) Open(userns *os.File) (*os.File, error) {
	fs, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("overlay: fsopen: %w", err)
	}
	defer unix.Close(fs)
	lower := make([]string, 0, len(o.Lower))
	for _, dir := range o.Lower {
		fd, err := idmapped(dir, userns)
		if err != nil {
			return nil, err
		}
		defer unix.Close(fd)
		lower = append(lower, fmt.Sprintf("/proc/self/fd/%d", fd))
	}
	for _, kv := range [][2]string{
		{"source", "overlay"},
		{"lowerdir", strings.Join(lower, ":")},
		{"upperdir", o.Upper},
		{"workdir", o.Work},
		// Upper layers must stay self-contained, whatever the kernel's defaults.
		{"metacopy", "off"},
		{"redirect_dir", "nofollow"},
	} {
		if err := unix.FsconfigSetString(fs, kv[0], kv[1]); err != nil {
			return nil, fmt.Errorf("overlay: %s: %w%s", kv[0], err, fsMessage(fs))
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return nil, fmt.Errorf("overlay on %s: %w%s", o.Upper, err, fsMessage(fs))
	}
	mnt, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOSUID)
	if err != nil {
		return nil, fmt.Errorf("overlay: fsmount: %w%s", err, fsMessage(fs))
	}
	return os.NewFile(uintptr(mnt), "overlay"), nil
}

// idmapped gives a detached mount of dir that shows ids through userns.
func idmapped(dir string, userns *os.File) (int, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("open_tree %s: %w", dir, err)
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(userns.Fd())}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("idmapped mount of %s: %w", dir, err)
	}
	return fd, nil
}

// fsMessage is what the kernel says about a failed configuration step.
func fsMessage(fs int) string {
	buf := make([]byte, 512)
	n, err := unix.Read(fs, buf)
	if err != nil || n <= 0 {
		return ""
	}
	return " (" + strings.TrimSpace(string(buf[:n])) + ")"
}

// Detached keeps a mount's file system alive after the mount left the tree.
type Detached struct{ file *os.File }

// Close lets go of the file system. With the last reference the kernel writes
// out everything that the file system below holds, which may take seconds.
func (d Detached) Close() error { return d.file.Close() }

// Detach takes every mount on target away at once; the cost that unmounting
// has is paid when the returned handles are closed. Nothing mounted: nil.
func Detach(target string) ([]Detached, error) {
	var all []Detached
	for {
		f, err := os.OpenFile(target, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
			return all, nil
		}
		if err != nil {
			return all, fmt.Errorf("unmount: %w", err)
		}
		err = unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if err != nil {
			f.Close()
			if errors.Is(err, unix.EINVAL) { // not a mount point
				return all, nil
			}
			return all, fmt.Errorf("unmount %s: %w", target, err)
		}
		all = append(all, Detached{f})
	}
}

// MountsUnder lists the mount points at or below dir in this process's mount
// namespace, in the order in which they were mounted.
func MountsUnder(dir string) ([]string, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var found []string
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		p := unescape.Replace(f[4])
		if p == dir || strings.HasPrefix(p, dir+"/") {
			found = append(found, p)
		}
	}
	return found, nil
}

// unescape undoes what the kernel writes for the four bytes that would break a line.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
