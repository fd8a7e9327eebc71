// Package account looks up users and groups in the sandbox's own /etc/passwd
// and /etc/group. The daemon's command, process and file code call it.
//
// The files are parsed again when they change, so an account made by a command
// is found by the next request; between changes a lookup is a stat and a map
// access. Both files are capped at 8 MiB; lines that don't parse are skipped,
// as libc does. A DB is safe for concurrent use.
package account

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// maxFile bounds how much of a file is read.
const maxFile = 8 << 20

// ErrUnknown: there is no such user or group.
var ErrUnknown = errors.New("no such account")

// User is an entry of /etc/passwd with the ids of its groups.
type User struct {
	Name     string
	UID, GID uint32
	Groups   []uint32 // supplementary, without GID
	Home     string
	Shell    string
}

// DB reads the files at Passwd and Group.
type DB struct {
	passwd, group string

	mu           sync.Mutex
	users        []User
	byName       map[string]int
	byID         map[uint32]int
	groupIDs     map[string]uint32
	groupNames   map[uint32]string
	members      map[string][]uint32 // user name → groups that list it
	pSeen, gSeen stamp
}

// stamp tells one state of a file from another.
type stamp struct {
	ino   uint64
	size  int64
	mtime time.Time
}

// New makes a DB of the two files, usually /etc/passwd and /etc/group. A
// missing file is an empty one.
func New(passwd, group string) *DB { return &DB{passwd: passwd, group: group} }

// System is the DB of the sandbox.
var System = New("/etc/passwd", "/etc/group")

// User finds a user by name.
func (d *DB) User(name string) (User, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.refresh(); err != nil {
		return User{}, err
	}
	i, ok := d.byName[name]
	if !ok {
		return User{}, fmt.Errorf("user %q: %w", name, ErrUnknown)
	}
	return d.withGroups(i), nil
}

// UserID finds a user by number.
func (d *DB) UserID(uid uint32) (User, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.refresh(); err != nil {
		return User{}, err
	}
	i, ok := d.byID[uid]
	if !ok {
		return User{}, fmt.Errorf("user id %d: %w", uid, ErrUnknown)
	}
	return d.withGroups(i), nil
}

// Group gives the id of a group.
func (d *DB) Group(name string) (uint32, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.refresh(); err != nil {
		return 0, err
	}
	gid, ok := d.groupIDs[name]
	if !ok {
		return 0, fmt.Errorf("group %q: %w", name, ErrUnknown)
	}
	return gid, nil
}

// UserName gives the name of a user id, or the number in digits where there is none.
func (d *DB) UserName(uid uint32) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refresh() == nil {
		if i, ok := d.byID[uid]; ok {
			return d.users[i].Name
		}
	}
	return strconv.FormatUint(uint64(uid), 10)
}

// GroupName gives the name of a group id, or the number in digits where there is none.
func (d *DB) GroupName(gid uint32) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refresh() == nil {
		if name, ok := d.groupNames[gid]; ok {
			return name
		}
	}
	return strconv.FormatUint(uint64(gid), 10)
}

func (d *DB) withGroups(i int) User {
	u := d.users[i]
	for _, gid := range d.members[u.Name] {
		if gid != u.GID {
			u.Groups = append(u.Groups, gid)
		}
	}
	return u
}

func (d *DB) refresh() error {
	p, err := stampOf(d.passwd)
	if err != nil {
		return err
	}
	g, err := stampOf(d.group)
	if err != nil {
		return err
	}
	if d.byName == nil || p != d.pSeen {
		b, err := read(d.passwd)
		if err != nil {
			return err
		}
		d.parsePasswd(b)
		d.pSeen = p
	}
	if d.groupIDs == nil || g != d.gSeen {
		b, err := read(d.group)
		if err != nil {
			return err
		}
		d.parseGroup(b)
		d.gSeen = g
	}
	return nil
}

func (d *DB) parsePasswd(b []byte) {
	d.users, d.byName, d.byID = nil, map[string]int{}, map[uint32]int{}
	for line := range bytes.Lines(b) {
		f := strings.Split(strings.TrimRight(string(line), "\r\n"), ":")
		if len(f) < 7 || f[0] == "" || f[0][0] == '#' || f[0][0] == '+' || f[0][0] == '-' {
			continue
		}
		uid, err1 := parseID(f[2])
		gid, err2 := parseID(f[3])
		if err1 != nil || err2 != nil {
			continue
		}
		i := len(d.users)
		d.users = append(d.users, User{Name: f[0], UID: uid, GID: gid, Home: f[5], Shell: f[6]})
		if _, ok := d.byName[f[0]]; !ok { // the first entry counts, as in libc
			d.byName[f[0]] = i
		}
		if _, ok := d.byID[uid]; !ok {
			d.byID[uid] = i
		}
	}
}

func (d *DB) parseGroup(b []byte) {
	d.groupIDs, d.groupNames, d.members = map[string]uint32{}, map[uint32]string{}, map[string][]uint32{}
	for line := range bytes.Lines(b) {
		f := strings.Split(strings.TrimRight(string(line), "\r\n"), ":")
		if len(f) < 3 || f[0] == "" || f[0][0] == '#' || f[0][0] == '+' || f[0][0] == '-' {
			continue
		}
		gid, err := parseID(f[2])
		if err != nil {
			continue
		}
		if _, ok := d.groupIDs[f[0]]; !ok {
			d.groupIDs[f[0]] = gid
		}
		if _, ok := d.groupNames[gid]; !ok {
			d.groupNames[gid] = f[0]
		}
		if len(f) < 4 {
			continue
		}
		for m := range strings.SplitSeq(f[3], ",") {
			if m != "" {
				d.members[m] = append(d.members[m], gid)
			}
		}
	}
}

// parseID refuses the id -1, which system calls read as "leave unchanged".
func parseID(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err == nil && n == 1<<32-1 {
		err = strconv.ErrRange
	}
	return uint32(n), err
}

func stampOf(path string) (stamp, error) {
	fi, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return stamp{}, nil
	}
	if err != nil {
		return stamp{}, err
	}
	return stamp{ino: inode(fi), size: fi.Size(), mtime: fi.ModTime()}, nil
}

// read gives the content of a regular file. The sandbox's root may put anything
// at the path: a FIFO must not hold up the daemon, hence the non-blocking open.
func read(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	return io.ReadAll(io.LimitReader(f, maxFile))
}

func inode(fi os.FileInfo) uint64 {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		return st.Ino
	}
	return 0
}
