package wire

// The features beside files.v1, below the same prefix and with the same rules
// for paths, roots, unknown parameters and refusals.
//
// archive.v1:
//
//	GET  /v1/fs/archive?path&root*&format → the archive; trailers HeaderSkipped and HeaderChanged
//	POST /v1/fs/extract?path&root*&owner&group&no_replace=1&max_bytes&max_entries → Extracted; a refusal is an ExtractRefusal
//
// watch.v1:
//
//	GET  /v1/fs/watch?path&root*&interval_ms → NDJSON: WatchLine, the first with Ready, for as long as the client stays
//
// search.v1:
//
//	GET  /v1/fs/grep?path&root*&text&regexp=1&ignore_case=1&name&max&max_size → NDJSON: Match, then a LastLine
//
// upload.v1:
//
//	POST   /v1/fs/uploads UploadStart → UploadStatus
//	GET    /v1/fs/uploads?id → UploadStatus
//	PATCH  /v1/fs/uploads?id&offset → UploadStatus; the body follows what is there from offset on
//	POST   /v1/fs/uploads/finish UploadFinish → Entry
//	DELETE /v1/fs/uploads?id → 204
const (
	PathArchive      = "/v1/fs/archive"
	PathExtract      = "/v1/fs/extract"
	PathWatch        = "/v1/fs/watch"
	PathGrep         = "/v1/fs/grep"
	PathUploads      = "/v1/fs/uploads"
	PathUploadFinish = "/v1/fs/uploads/finish"
)

// Features of Version.
const (
	FeatureArchive = "archive.v1" // trees as one stream, out and in
	FeatureWatch   = "watch.v1"   // changes of a tree
	FeatureSearch  = "search.v1"  // lines of files
	FeatureUpload  = "upload.v1"  // uploads that can be resumed
)

// Codes of FileError beside those of files.v1.
const (
	CodeFileLimit      = "FILE_LIMIT"       // 413: larger, deeper or more than the daemon takes
	CodeUploadNotFound = "UPLOAD_NOT_FOUND" // 404: never begun, expired, or the daemon was started anew
	CodeUploadOffset   = "UPLOAD_OFFSET"    // 409: the content continues elsewhere; ask for the status
	CodeHashMismatch   = "HASH_MISMATCH"    // 422: other content than the hash says; the upload is gone
)

// Trailers of an archive: how many entries were left out because they vanished
// or couldn't be read, and how many files were shorter than they had said.
const (
	HeaderSkipped = "X-Execd-Skipped"
	HeaderChanged = "X-Execd-Changed"
)

// Extracted says what an extraction wrote.
type Extracted struct {
	Entries int64 `json:"entries"`
	Bytes   int64 `json:"bytes"`
	Skipped int64 `json:"skipped"` // devices, FIFOs and what else isn't made
}

// ExtractRefusal is a failed extraction; Path is that of the entry.
type ExtractRefusal struct {
	FileError
	Extracted
}

// Change is something that happened below a watched directory. Kinds are those
// of package sandbox.
type Change struct {
	Kind    string `json:"kind,omitempty"`
	Path    string `json:"path,omitempty"`
	PathB64 []byte `json:"path_b64,omitempty"`
	From    string `json:"from,omitempty"`
	FromB64 []byte `json:"from_b64,omitempty"`
	Dir     bool   `json:"dir,omitempty"`
}

// WatchLine is one line of a watch: a change, the line that says that all that
// happens from now on is told, a sign of life (every 15 s), or the last line.
type WatchLine struct {
	Change
	Ready bool       `json:"ready,omitempty"`
	Beat  bool       `json:"beat,omitempty"`
	Error *FileError `json:"error,omitempty"`
}

// Match is a line of a content search, or the last line.
type Match struct {
	Path    string `json:"path,omitempty"`
	PathB64 []byte `json:"path_b64,omitempty"`
	Line    int64  `json:"line,omitempty"`
	Offset  int64  `json:"offset"`
	Text    string `json:"text,omitempty"`
	TextB64 []byte `json:"text_b64,omitempty"`
	Start   int    `json:"start"` // of the match in Text, in bytes
	Stop    int    `json:"stop"`
	LastLine
}

// UploadStart begins an upload.
type UploadStart struct {
	Scope
	FileAttr
	Size        int64  `json:"size"`
	SHA256      string `json:"sha256,omitempty"` // hexadecimal; here or at the finish
	NoReplace   bool   `json:"no_replace,omitempty"`
	IfUnchanged string `json:"if_unchanged,omitempty"`
}

// UploadStatus says how far an upload is.
type UploadStatus struct {
	ID     string `json:"id"`
	Size   int64  `json:"size"`
	Offset int64  `json:"offset"` // of the next byte that is wanted
	Done   bool   `json:"done,omitempty"`
}

// UploadFinish puts the file in place. Repeated it gives the same answer for an hour.
type UploadFinish struct {
	ID     string `json:"id"`
	SHA256 string `json:"sha256,omitempty"`
}
