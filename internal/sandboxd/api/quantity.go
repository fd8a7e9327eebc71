package api

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

var suffixes = map[string]float64{
	"m": 1e-3, "": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15,
	"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50,
}

// quantity reads a Kubernetes quantity such as "500m", "1.5" or "4Gi": a
// decimal number above zero and below 2^60, without sign or exponent.
func quantity(s string) (float64, error) {
	end := strings.LastIndexAny(s, "0123456789.") + 1
	number, suffix := s[:end], s[end:]
	factor, known := suffixes[suffix]
	if !known || number == "" || len(number) > 24 || strings.Trim(number, "0123456789.") != "" {
		return 0, fmt.Errorf("%q is not a quantity", s)
	}
	n, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is not a quantity", s)
	}
	switch v := n * factor; {
	case v <= 0:
		return 0, errors.New("it must be more than zero")
	case v >= 1<<60:
		return 0, errors.New("it is too large")
	default:
		return v, nil
	}
}
