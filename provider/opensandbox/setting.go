package opensandbox

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// exampleURL is what a base URL looks like.
const exampleURL = "http://127.0.0.1:8080/v1"

// reading reads settings and collects what is wrong with them. Each fault
// names its setting, shows the value unless it may hold a secret, and says what
// is accepted.
type reading struct {
	get   func(string) string
	wrong []error
}

func (r *reading) bad(setting, format string, args ...any) {
	r.wrong = append(r.wrong, fmt.Errorf("%s %s", setting, fmt.Sprintf(format, args...)))
}

// base is nil where the address is in the listen file.
func (r *reading) base() *url.URL {
	s := r.get(settingBaseURL)
	if s == "" {
		if r.get(settingListenFile) == "" {
			r.bad(settingBaseURL, "is not set, nor is %s: set one of them, the first to a URL such as %s", settingListenFile, exampleURL)
		}
		return nil
	}
	u, err := parseBase(s)
	if err != nil {
		r.bad(settingBaseURL, "%v", err)
	}
	return u
}

// plainURL is a text in which no password, key or other secret can be.
var plainURL = regexp.MustCompile(`^([a-z]+://)?[A-Za-z0-9.-]+(:[0-9]*)?(/[A-Za-z0-9._~/-]*)?$`)

// parseBase reads a base URL. Its text is in the error only where it holds no
// user, query or fragment, any of which may be a password.
func parseBase(s string) (*url.URL, error) {
	shown := ""
	if plainURL.MatchString(s) {
		shown = fmt.Sprintf(", not %q", s)
	}
	u, err := url.Parse(s)
	switch {
	case strings.TrimSpace(s) == "":
		return nil, fmt.Errorf("is blank: unset it, or write a URL such as %s", exampleURL)
	case strings.ContainsFunc(s, func(c rune) bool { return c <= ' ' || c == 0x7f }):
		return nil, fmt.Errorf("has a space or another character in it that isn't for URLs: write a URL such as %s", exampleURL)
	case !strings.Contains(s, "://") && shown != "":
		return nil, fmt.Errorf("must begin with http:// or https://: write http://%s", s)
	case err != nil:
		return nil, fmt.Errorf("is not a URL: write one such as %s%s", exampleURL, shown)
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, fmt.Errorf("must begin with http:// or https://, as in %s%s", exampleURL, shown)
	case u.Hostname() == "":
		return nil, fmt.Errorf("names no host: write a URL such as %s%s", exampleURL, shown)
	case u.Port() == "" && strings.HasSuffix(u.Host, ":"), u.Port() != "" && !validPort(u.Port()):
		return nil, fmt.Errorf("must have a port from 1 to 65535, or none, as in %s%s", exampleURL, shown)
	case u.User != nil, u.RawQuery != "", u.ForceQuery, u.Fragment != "":
		plain := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}
		return nil, fmt.Errorf("must have no user, query or fragment: write %s, and an API key into %s", plain.String(), settingKey)
	}
	return u, nil
}

func validPort(s string) bool {
	n, err := strconv.Atoi(s)
	return err == nil && n >= 1 && n <= 65535
}

// key is the API key. Its value is never shown.
func (r *reading) key() string {
	s := r.get(settingKey)
	if err := checkKey(s); err != nil {
		r.bad(settingKey, "%v", err)
	}
	return s
}

// checkKey refuses a key that no request header can carry as it is.
func checkKey(s string) error {
	switch {
	case strings.TrimSpace(s) != s:
		return errors.New("begins or ends with a space or a line break: write the key without")
	case strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c == 0x7f }):
		return errors.New("has a line break or another control character in it, which a request header can't carry")
	}
	return nil
}

func (r *reading) duration(setting string, otherwise time.Duration) time.Duration {
	s := r.get(setting)
	if s == "" {
		return otherwise
	}
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		r.bad(setting, "must be a duration above zero with its unit, such as 15s or 2m, not %q", shown(s))
		return otherwise
	}
	return d
}

func (r *reading) scheme() string {
	s := r.get(settingScheme)
	switch s {
	case "", "http", "https":
	default:
		r.bad(settingScheme, "must be http or https, not %q; unset it for that of the base URL", shown(s))
	}
	return s
}

func (r *reading) boolean(setting string) bool {
	s := r.get(setting)
	if s == "" {
		return false
	}
	b, err := strconv.ParseBool(s)
	if err != nil {
		r.bad(setting, "must be true or false, not %q", shown(s))
	}
	return b
}

// shown is a value that isn't a secret, shortened.
func shown(s string) string {
	if len(s) > 80 {
		return strings.ToValidUTF8(s[:80], "") + "…"
	}
	return s
}
