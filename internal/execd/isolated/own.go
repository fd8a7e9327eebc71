package isolated

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// What a session has of /proc, /dev and /sys.

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

// networkDirs are the parts of /sys that show a network.
var networkDirs = []string{"/sys/class/net", "/sys/devices/virtual/net"}

// ownNetwork gives copies of the mounts that show the network of the calling
// process. What the sandbox's /sys hides stays hidden, since only these parts are
// replaced. A kernel that lets no sysfs be mounted here gives none.
func ownNetwork(root int) (map[string]int, error) {
	const how = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if mountAt(root, "sys", "sysfs", how, "") != nil {
		return nil, nil //nolint:nilerr // then nothing is shown there
	}
	trees := map[string]int{}
	for _, dir := range networkDirs {
		at, err := target(root, dir, unix.RESOLVE_NO_SYMLINKS)
		if err != nil {
			continue
		}
		if fd, err := cloneTree(at, "", unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC); err == nil {
			trees[dir] = fd
		}
		unix.Close(at) //nolint:errcheck // an O_PATH descriptor
	}
	// The whole of it must not stay: it lacks what covers parts of the sandbox's.
	at, err := target(root, "sys", unix.RESOLVE_NO_SYMLINKS)
	if err == nil {
		err = unix.Unmount("/proc/self/fd/"+strconv.Itoa(at), unix.MNT_DETACH)
		unix.Close(at) //nolint:errcheck // an O_PATH descriptor
	}
	if err != nil {
		return nil, fmt.Errorf("unmount the network's sysfs: %w", err)
	}
	return trees, nil
}

// showNetwork puts the parts of /sys that ownNetwork gave in their places; those
// that it didn't are empty.
func showNetwork(trees map[string]int) error {
	for _, dir := range networkDirs {
		var st unix.Stat_t
		if err := unix.Stat(dir, &st); err != nil {
			continue // this sandbox doesn't have it
		}
		var err error
		if fd, ok := trees[dir]; ok {
			err = unix.MoveMount(fd, "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH)
			unix.Close(fd) //nolint:errcheck // an O_PATH descriptor
		} else {
			err = cover(dir)
		}
		if err != nil {
			return fmt.Errorf("show the network in %s: %w", dir, err)
		}
	}
	return nil
}

// cover hides a directory.
func cover(dir string) error {
	return unix.Mount("tmpfs", dir, "tmpfs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=0,nr_inodes=1")
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
			err = cover(path)
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
	var dev unix.Stat_t
	if err := unix.Stat("/dev", &dev); err != nil {
		return err
	}
	for name, fd := range devs {
		path := "/dev/" + name
		if err := mountPoint(root, path, false, []uint64{dev.Dev}); err != nil {
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
