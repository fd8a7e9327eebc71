package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"time"
	"unicode/utf8"
)

// The files.v1 feature.
//
//	GET  /v1/fs/stat?path&root*            → Entry (a final link reports itself)
//	GET  /v1/fs/list?path&root*&depth      → NDJSON: entries, then a LastLine
//	GET  /v1/fs/search?path&root*&pattern  → NDJSON: entries, then a LastLine
//	GET  /v1/fs/content?path&root*         → the bytes; Range and conditional headers hold; ETag is the quoted version
//	PUT  /v1/fs/content?path&root*&mode&owner&group&no_replace=1&if_unchanged → Entry; the body is the content
//	POST /v1/fs/mkdir    MakeDir    → Entry
//	POST /v1/fs/attr     SetAttr    → Entry
//	POST /v1/fs/rename   Rename     → 204
//	POST /v1/fs/remove   RemoveAll  → 204
//
// Paths are absolute byte strings of at most 4095 bytes without NUL, taken
// literally. Query values are percent-encoded bytes. In JSON a string that is
// valid UTF-8 stands in the plain field, any other as base64 in its *_b64 twin.
//
// root may be given several times: each must lie below the one before, and
// everything is confined to the last. A link that points outside is
// PATH_ESCAPES; an absolute link whose target lies below the root as it is
// spelled is followed.
//
// An unknown query parameter or body field is refused, so that a misspelt root
// or no_replace never widens what a request does.
const (
	PathStat    = "/v1/fs/stat"
	PathList    = "/v1/fs/list"
	PathSearch  = "/v1/fs/search"
	PathContent = "/v1/fs/content"
	PathMakeDir = "/v1/fs/mkdir"
	PathAttr    = "/v1/fs/attr"
	PathRename  = "/v1/fs/rename"
	PathRemove  = "/v1/fs/remove"
)

// Codes of FileError, with the HTTP status that they travel under;
// CodeUnknownAccount (400) is one too.
const (
	CodeFileNotFound     = "FILE_NOT_FOUND"    // 404
	CodeFileExists       = "FILE_EXISTS"       // 409
	CodeFileChanged      = "FILE_CHANGED"      // 412, if_unchanged
	CodePathInvalid      = "PATH_INVALID"      // 400, also a bad parameter or pattern
	CodePathEscapes      = "PATH_ESCAPES"      // 403
	CodeNotADirectory    = "NOT_A_DIRECTORY"   // 400
	CodeIsADirectory     = "IS_A_DIRECTORY"    // 400
	CodeNotRegular       = "NOT_REGULAR"       // 400: a FIFO, socket or device
	CodeNotEmpty         = "NOT_EMPTY"         // 409
	CodeCrossDevice      = "CROSS_DEVICE"      // 400: a rename between file systems
	CodePermissionDenied = "PERMISSION_DENIED" // 403
	CodeNoSpace          = "NO_SPACE"          // 507
	CodeIncompleteBody   = "INCOMPLETE_BODY"   // 400: the content ended early; nothing was written
	CodeFileError        = "FILE_ERROR"        // 500
)

// FileError is the body of a refusal below /v1/fs.
type FileError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Path    string `json:"path,omitempty"` // the path concerned, where the request names several
	PathB64 []byte `json:"path_b64,omitempty"`
}

// Types of Entry.
const (
	TypeFile      = "file"
	TypeDirectory = "directory"
	TypeSymlink   = "symlink"
	TypeFIFO      = "fifo"
	TypeSocket    = "socket"
	TypeDevice    = "device"
	TypeCharDev   = "char_device"
)

// Entry describes one file.
type Entry struct {
	Path      string    `json:"path,omitempty"`
	PathB64   []byte    `json:"path_b64,omitempty"`
	Type      string    `json:"type"`
	Size      int64     `json:"size"`
	Mode      string    `json:"mode"` // octal with the special bits: "4755"
	Owner     string    `json:"owner"`
	Group     string    `json:"group"`
	ModTime   time.Time `json:"mtime"`
	Target    string    `json:"target,omitempty"` // of a symlink
	TargetB64 []byte    `json:"target_b64,omitempty"`
	Version   string    `json:"version"` // opaque; differs when content or attributes were changed
}

// Line is one line of a listing, as it is read: an entry, or the last line,
// which has End or Error. A listing without a last line was cut off.
type Line struct {
	Entry
	LastLine
}

// LastLine is the end of a listing.
type LastLine struct {
	End   bool       `json:"end,omitempty"`
	Error *FileError `json:"error,omitempty"`
}

// Scope says which file a body is about and what it is confined to.
type Scope struct {
	Path     string   `json:"path,omitempty"`
	PathB64  []byte   `json:"path_b64,omitempty"`
	Roots    []string `json:"roots,omitempty"`
	RootsB64 [][]byte `json:"roots_b64,omitempty"`
}

// FileAttr is what a file is given. Empty fields leave things as they are.
type FileAttr struct {
	Mode  string `json:"mode,omitempty"` // octal digits, at most 7777
	Owner string `json:"owner,omitempty"`
	Group string `json:"group,omitempty"`
}

// MakeDir is the body of PathMakeDir.
type MakeDir struct {
	Scope
	FileAttr
	Parents bool `json:"parents,omitempty"`
}

// SetAttr is the body of PathAttr. A final link is followed. A change of owner
// without a mode drops setuid and setgid, as chown(2) does.
type SetAttr struct {
	Scope
	FileAttr
}

// Rename is the body of PathRename; Scope.Path is what is moved.
type Rename struct {
	Scope
	To        string `json:"to,omitempty"`
	ToB64     []byte `json:"to_b64,omitempty"`
	NoReplace bool   `json:"no_replace,omitempty"` // anything at To is FILE_EXISTS
}

// RemoveAll is the body of PathRemove; Scope.Path is not used. All Paths are
// in one of the two lists. They are removed in order up to the first failure,
// which FileError.Path names.
type RemoveAll struct {
	Scope
	Paths     []string `json:"paths,omitempty"`
	PathsB64  [][]byte `json:"paths_b64,omitempty"`
	Recursive bool     `json:"recursive,omitempty"`
}

// SplitText puts s into the plain field, or its bytes into the base64 twin
// when JSON can't carry them.
func SplitText(s string) (text string, raw []byte) {
	if utf8.ValidString(s) {
		return s, nil
	}
	return "", []byte(s)
}

// JoinText reverses SplitText.
func JoinText(text string, raw []byte) string {
	if len(raw) > 0 {
		return string(raw)
	}
	return text
}

// SplitTexts is SplitText for a list, which goes into one of the two as a whole.
func SplitTexts(all []string) (texts []string, raws [][]byte) {
	for _, s := range all {
		if !utf8.ValidString(s) {
			raws = make([][]byte, len(all))
			for i, s := range all {
				raws[i] = []byte(s)
			}
			return nil, raws
		}
	}
	return all, nil
}

// JoinTexts reverses SplitTexts.
func JoinTexts(texts []string, raws [][]byte) []string {
	if len(raws) == 0 {
		return texts
	}
	all := make([]string, len(raws))
	for i, b := range raws {
		all[i] = string(b)
	}
	return all
}

// DecodeStrict reads exactly one JSON value with known fields only. JSON that
// isn't valid UTF-8 is refused, because decoding would change the names in it.
func DecodeStrict(b []byte, out any) error {
	if !utf8.Valid(b) {
		return errors.New("the body isn't valid UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(out); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("the body goes on after the JSON value")
	}
	return nil
}
