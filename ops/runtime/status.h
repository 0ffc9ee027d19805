// Errors inside the library are exceptions; they become an OrtStatus at the C boundary and never cross it.
#pragma once

#include <exception>
#include <sstream>
#include <stdexcept>
#include <string>

#include "runtime/ort_abi.h"

namespace sparse_ops {

// What a caller did wrong: an attribute, a shape, a value.
class InvalidArgument : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A status that ONNX Runtime answered; handed back to it as it came.
class OrtError : public std::exception {
 public:
  explicit OrtError(OrtStatus* status) : status_(status) {}
  const char* what() const noexcept override { return "ONNX Runtime answered an error status"; }
  OrtStatus* status() const { return status_; }

 private:
  OrtStatus* status_;
};

inline void Check(OrtStatus* status) {
  if (status != nullptr) throw OrtError(status);
}

template <class... Parts>
std::string Message(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

template <class Function>
OrtStatus* StatusOf(const OrtApi& api, const Function& function) noexcept {
  try {
    function();
    return nullptr;
  } catch (const OrtError& error) {
    return error.status();
  } catch (const InvalidArgument& error) {
    return api.CreateStatus(ORT_INVALID_ARGUMENT, error.what());
  } catch (const std::exception& error) {
    return api.CreateStatus(ORT_FAIL, error.what());
  } catch (...) {
    return api.CreateStatus(ORT_FAIL, "unknown error");
  }
}

}  // namespace sparse_ops
