package rootfs

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// skeletonVersion goes into the digest, so that a changed builder makes a new skeleton.
const skeletonVersion = "2"

// agentID is the user and group of "agent", the account that work in a sandbox
// runs under.
const agentID = 1000

// Bounds of what is copied from /etc; a machine past them is refused.
const (
	maxEtcFiles = 20_000
	maxEtcBytes = 64 << 20
)

// etcAllowed is what a sandbox gets of this machine's /etc. It is a list of
// what may pass rather than of what may not: a file that a package adds
// tomorrow stays out, and what administrators write settings and passwords into
// (profile.d, environment, skel, settings.xml) isn't in it. Patterns are those of
// path.Match. Of these only what everybody may read is copied.
var etcAllowed = []string{
	"alternatives", "bash_completion.d", "ca-certificates.conf", "debian_version", "fonts", "gai.conf", "groff",
	"host.conf", "inputrc", "issue", "java-*", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "locale.alias",
	"localtime", "login.defs", "magic", "magic.mime", "maven/logging", "maven/m2.conf", "mime.types", "networks",
	"os-release", "pam.conf", "pam.d", "perl", "pki/tls/certs", "pki/ca-trust/extracted/pem", "protocols",
	"python3*", "rpc", "security", "services", "shells", "ssl/certs", "ssl/openssl.cnf", "terminfo", "timezone",
	"vim", "xdg",
}

// dirs of the skeleton with their modes; root owns them unless agentDirs has them.
var skeletonDirs = []struct {
	path string
	mode fs.FileMode
}{
	{"boot", 0o755}, {"dev", 0o755}, {"etc", 0o755}, {"etc/skel", 0o755}, {"etc/profile.d", 0o755}, {"home", 0o755}, {"home/agent", 0o750},
	{"media", 0o755}, {"mnt", 0o755}, {"opt", 0o755}, {"opt/astrabox", 0o755}, {"opt/astrabox/opensandbox", 0o755},
	{"proc", 0o555}, {"root", 0o700}, {"run", 0o755}, {"run/lock", 0o1777}, {"srv", 0o755}, {"sys", 0o555},
	{"tmp", 0o1777}, {"usr", 0o755}, {"var", 0o755}, {"var/cache", 0o755}, {"var/lib", 0o755},
	{"var/lib/dpkg", 0o755}, {"var/log", 0o755}, {"var/spool", 0o755}, {"var/tmp", 0o1777}, {"workspace", 0o750},
}

var agentDirs = map[string]bool{"home/agent": true, "workspace": true}

// skeletonFiles are written rather than copied. The machine's own would tell
// its users, its names and its resolvers.
var skeletonFiles = []struct {
	path, text string
	mode       fs.FileMode
}{
	{"etc/passwd", "root:x:0:0:root:/root:/bin/bash\ndaemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n" +
		"bin:x:2:2:bin:/bin:/usr/sbin/nologin\nsys:x:3:3:sys:/dev:/usr/sbin/nologin\nman:x:6:12:man:/var/cache/man:/usr/sbin/nologin\n" +
		"mail:x:8:8:mail:/var/mail:/usr/sbin/nologin\nwww-data:x:33:33:www-data:/var/www:/usr/sbin/nologin\n" +
		"_apt:x:42:65534::/nonexistent:/usr/sbin/nologin\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n" +
		"agent:x:1000:1000:agent:/home/agent:/bin/bash\n", 0o644},
	{"etc/group", "root:x:0:\ndaemon:x:1:\nbin:x:2:\nsys:x:3:\nadm:x:4:\ntty:x:5:\nmail:x:8:\nman:x:12:\nsudo:x:27:\nwww-data:x:33:\n" +
		"shadow:x:42:\nutmp:x:43:\nstaff:x:50:\nusers:x:100:\nnogroup:x:65534:\nagent:x:1000:\n", 0o644},
	{"etc/shadow", "root:*:19000:0:99999:7:::\nagent:*:19000:0:99999:7:::\nnobody:*:19000:0:99999:7:::\n", 0o600},
	{"etc/gshadow", "root:*::\nagent:*::\n", 0o600},
	{"etc/subuid", "", 0o644},
	{"etc/subgid", "", 0o644},
	{"etc/nsswitch.conf", "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\nprotocols: files\nservices: files\nethers: files\nrpc: files\n", 0o644},
	{"etc/hostname", "sandbox\n", 0o644},
	{"etc/hosts", "127.0.0.1 localhost\n127.0.1.1 sandbox\n", 0o644},
	{"etc/resolv.conf", "# This sandbox has no way to a name server.\n", 0o644},
	{"etc/machine-id", strings.Repeat("0", 32) + "\n", 0o444},
	{"etc/fstab", "", 0o644},
	{"etc/profile", "# A login shell in this sandbox.\n" +
		"[ -d /usr/local/go/bin ] && case \":$PATH:\" in *:/usr/local/go/bin:*) ;; *) PATH=$PATH:/usr/local/go/bin ;; esac\n" +
		"export PATH\n[ -n \"$BASH_VERSION\" ] && [ -f /etc/bash.bashrc ] && . /etc/bash.bashrc\n", 0o644},
	{"etc/bash.bashrc", "# Interactive shells in this sandbox.\ncase $- in *i*) PS1='\\u@\\h:\\w\\$ ' ;; esac\n", 0o644},
	{"etc/environment", "", 0o644},
	{"etc/gitconfig", "[safe]\n\tdirectory = /workspace\n\tdirectory = /workspace/*\n", 0o644},
	{"var/lib/dpkg/status", "", 0o644},
}

// topLinks are the directories that a merged-/usr system has as links.
var topLinks = []string{"bin", "sbin", "lib", "lib64", "lib32", "libx32"}

// ErrNotMerged marks a machine whose /bin, /sbin or /lib aren't links into /usr.
var ErrNotMerged = errors.New("this machine's /bin, /sbin and /lib are not links into /usr")

// CheckMerged says whether the host image can be made of this machine.
func CheckMerged() error {
	for _, l := range []string{"bin", "sbin", "lib"} {
		t, err := os.Readlink("/" + l)
		if err != nil || !strings.HasPrefix(strings.TrimPrefix(t, "/"), "usr/") {
			return fmt.Errorf("%w (/%s)", ErrNotMerged, l)
		}
	}
	return nil
}

// Skeleton returns the directory below cache that is the lowest layer of
// every sandbox of the host image, and makes it when it's missing (about 0.1
// to 0.5 s, besides one look at all of /usr). Its usr lies
// over this machine's and hides what isn't for everybody to read. Its name is a
// digest of what it was made from, so a machine whose /etc or private files
// changed gets another one and running sandboxes keep theirs. ids inside are
// those that the sandbox shall see.
func Skeleton(cache string) (string, error) {
	if err := CheckMerged(); err != nil {
		return "", err
	}
	list, err := scanEtc("/etc")
	if err != nil {
		return "", fmt.Errorf("skeleton: %w", err)
	}
	private, err := privateUsr()
	if err != nil {
		return "", fmt.Errorf("skeleton: %w", err)
	}
	dir := filepath.Join(cache, digest(list, private))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	tmp, err := os.MkdirTemp(cache, ".making-")
	if err != nil {
		return "", fmt.Errorf("skeleton: %w", err)
	}
	defer os.RemoveAll(tmp)
	if err := build(tmp, list, private); err != nil {
		return "", fmt.Errorf("skeleton: %w", err)
	}
	if err := os.Rename(tmp, dir); err != nil {
		if _, e := os.Stat(dir); e == nil { // somebody else made the same one
			return dir, nil
		}
		return "", fmt.Errorf("skeleton: %w", err)
	}
	return dir, nil
}

// entry is one file of /etc that may be copied.
type entry struct {
	rel    string // below /etc
	info   fs.FileInfo
	target string // of a link
}

func scanEtc(etc string) ([]entry, error) {
	var list []entry
	var bytes int64
	for _, pattern := range etcAllowed {
		matches, err := filepath.Glob(filepath.Join(etc, pattern))
		if err != nil {
			return nil, err
		}
		for _, m := range matches {
			err := filepath.WalkDir(m, func(p string, d fs.DirEntry, err error) error {
				if err != nil {
					if errors.Is(err, fs.ErrNotExist) { // /etc changes while we look
						return nil
					}
					return err
				}
				fi, err := d.Info()
				if errors.Is(err, fs.ErrNotExist) {
					return nil
				}
				if err != nil {
					return err
				}
				e := entry{info: fi}
				if e.rel, err = filepath.Rel(etc, p); err != nil {
					return err
				}
				switch {
				case fi.Mode().Type() == fs.ModeSymlink:
					if e.target, err = os.Readlink(p); err != nil {
						return err
					}
				case fi.IsDir():
					if fi.Mode().Perm()&0o005 != 0o005 {
						return fs.SkipDir
					}
				case !fi.Mode().IsRegular() || fi.Mode().Perm()&0o004 == 0:
					return nil
				default:
					bytes += fi.Size()
				}
				list = append(list, e)
				if len(list) > maxEtcFiles || bytes > maxEtcBytes {
					return fmt.Errorf("what is to be copied of %s is more than %d files or %d bytes", etc, maxEtcFiles, maxEtcBytes)
				}
				return nil
			})
			if err != nil {
				return nil, err
			}
		}
	}
	return list, nil
}

func digest(list []entry, private []cover) string {
	h := sha256.New()
	fmt.Fprintln(h, skeletonVersion, etcAllowed, skeletonDirs, skeletonFiles)
	for _, e := range list {
		fmt.Fprintln(h, e.rel, e.info.Mode(), e.info.Size(), e.info.ModTime().UnixNano(), e.target)
	}
	for _, c := range private {
		fmt.Fprintf(h, "%q %v %o %d %d\n", c.rel, c.hidden, c.mode, c.uid, c.gid)
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}

func build(root string, list []entry, private []cover) error {
	if err := os.Chmod(root, 0o755); err != nil {
		return err
	}
	for _, d := range skeletonDirs {
		if err := makeDir(filepath.Join(root, d.path), d.mode); err != nil {
			return err
		}
		if agentDirs[d.path] {
			if err := os.Lchown(filepath.Join(root, d.path), agentID, agentID); err != nil {
				return err
			}
		}
	}
	links := map[string]string{"etc/mtab": "/proc/self/mounts", "var/run": "/run", "var/lock": "/run/lock"}
	for _, l := range topLinks {
		if t, err := os.Readlink("/" + l); err == nil {
			links[l] = t
		}
	}
	for name, target := range links {
		if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
			return err
		}
	}
	for _, e := range list {
		if err := e.copy("/etc", filepath.Join(root, "etc")); err != nil {
			return err
		}
	}
	for _, c := range private {
		if err := c.build(filepath.Join(root, "usr")); err != nil {
			return err
		}
	}
	for _, f := range skeletonFiles {
		p := filepath.Join(root, f.path)
		_ = os.Remove(p)
		if err := os.WriteFile(p, []byte(f.text), f.mode); err != nil {
			return err
		}
		if err := os.Chmod(p, f.mode); err != nil {
			return err
		}
	}
	return nil
}

// copy copies e, owned by root, with no more than the bits 0755.
func (e entry) copy(from, to string) error {
	src, dst := filepath.Join(from, e.rel), filepath.Join(to, e.rel)
	if err := os.MkdirAll(filepath.Dir(dst), 0o755); err != nil {
		return err
	}
	switch {
	case e.info.Mode().Type() == fs.ModeSymlink:
		return ignoreExist(os.Symlink(e.target, dst))
	case e.info.IsDir():
		return makeDir(dst, e.info.Mode().Perm()&0o755)
	}
	in, err := os.Open(src)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer in.Close()
	mode := e.info.Mode().Perm() & 0o755
	out, err := os.OpenFile(dst, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	defer out.Close()
	// The file may have grown since it was counted.
	if _, err := io.Copy(out, io.LimitReader(in, e.info.Size())); err != nil {
		return err
	}
	if err := out.Chmod(mode); err != nil {
		return err
	}
	return os.Chtimes(dst, e.info.ModTime(), e.info.ModTime())
}

func makeDir(path string, mode fs.FileMode) error {
	if err := ignoreExist(os.Mkdir(path, 0o755)); err != nil {
		return err
	}
	// fs.FileMode has the sticky bit elsewhere than the kernel.
	m := mode & 0o777
	if mode&0o1000 != 0 {
		m |= fs.ModeSticky
	}
	return os.Chmod(path, m)
}

func ignoreExist(err error) error {
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}
