package files

import (
	"errors"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/internal/execd/account"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// The older interface as an account: /v1/filesystem/{uid}/{gid} before its
// paths. The kernel decides what the account may do, with its groups; an
// account without an entry has none but gid.

const accountPrefix = "/v1/filesystem/"

// asAccount serves a path below the prefix.
func (s *service) asAccount(w http.ResponseWriter, r *http.Request, path string) {
	first, rest, _ := strings.Cut(path, "/")
	second, rest, ok := strings.Cut(rest, "/")
	uid, isUser := number("0" + first)
	gid, isGroup := number("0" + second)
	switch {
	case !ok:
		respond(w, http.StatusNotFound, wire.Error{Code: "NOT_FOUND", Message: "no such operation"})
		return
	case first == "" || second == "" || !isUser || !isGroup:
		respond(w, http.StatusBadRequest, wire.Error{Code: wire.CodeInvalidBody, Message: "the path needs the numbers of an account and a group, from 0 to 4294967294"})
		return
	}
	own := &service{
		all: s.all, root: s.root, uid: uid, gid: gid, accounts: s.accounts,
		publishing: s.publishing, notes: s.notes, main: s,
	}
	h, ok := own.legacy()[r.Method+" /"+rest]
	if !ok {
		respond(w, http.StatusNotFound, wire.Error{Code: "NOT_FOUND", Message: "no such operation"})
		return
	}
	u, err := s.accounts.UserID(uid)
	if err != nil && !errors.Is(err, account.ErrUnknown) {
		refuseLegacy(w, err)
		return
	}
	var panicked any
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { panicked = recover() }()
		runtime.LockOSThread() // for good: the thread ends with its ids
		if !become(uid, gid, u.Groups) {
			respond(w, http.StatusNotImplemented, wire.Error{Code: "NOT_SUPPORTED", Message: "this daemon can't become another account"})
			return
		}
		if err := h(w, r); err != nil {
			refuseLegacy(w, err)
		}
	}()
	<-done
	if panicked != nil {
		panic(panicked) // a listing that breaks off
	}
}

// become gives the calling thread the ids that count for files. Those of the
// process, and so what signals and other programs see, stay. An account other
// than root has no capability: leaving root this way drops those that count for
// files, but not the one to look into the processes of others, for one.
func become(uid, gid uint32, groups []uint32) bool {
	switch self := unix.Geteuid(); {
	case self == int(uid) && unix.Getegid() == int(gid) && self != 0:
		return true
	case self != 0: // with capabilities of its own, the kernel would drop none
		return false
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(unsafe.SliceData(groups))), 0); e != 0 {
		return false
	}
	changed := setID(unix.SYS_SETFSGID, gid) && setID(unix.SYS_SETFSUID, uid)
	// Where fs.suid_dumpable is 1, a change has made the daemon's memory readable.
	return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) == nil && changed && (uid == 0 || dropCapabilities())
}

// dropCapabilities leaves the calling thread none that has an effect.
func dropCapabilities() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if unix.Capget(&header, &sets[0]) != nil {
		return false
	}
	sets[0].Effective, sets[1].Effective = 0, 0
	return unix.Capset(&header, &sets[0]) == nil
}

// setID calls setfsuid or setfsgid, which report the id from before whether
// they have succeeded or not. An invalid one changes nothing.
func setID(call uintptr, id uint32) bool {
	_, _, _ = unix.RawSyscall(call, uintptr(id), 0, 0)
	now, _, _ := unix.RawSyscall(call, ^uintptr(0), 0, 0)
	return uint32(now) == id
}

// self is the account that new files belong to until they are given away.
func (s *service) self() int {
	if s.main != nil {
		return int(s.uid)
	}
	return unix.Geteuid()
}

// names are the hidden names in use.
func (s *service) names() *sync.Map {
	if s.main != nil {
		return s.main.names()
	}
	return &s.hidden
}
