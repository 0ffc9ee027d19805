#include "onnxruntime_backend/errors.h"

#include <memory>
#include <sstream>

namespace sparse_serve {

void Check(TRITONSERVER_Error* error) {
  if (error == nullptr) {
    return;
  }
  const bool is_clients = TRITONSERVER_ErrorCode(error) == TRITONSERVER_ERROR_INVALID_ARG;
  const std::string message = TRITONSERVER_ErrorMessage(error);
  TRITONSERVER_ErrorDelete(error);
  if (is_clients) {
    throw InvalidArgument(message);
  }
  throw std::runtime_error(message);
}

void Check(const OrtApi& api, OrtStatus* status) {
  if (status == nullptr) {
    return;
  }
  const bool is_clients = api.GetErrorCode(status) == ORT_INVALID_ARGUMENT;
  const std::string message = std::string("onnx runtime error: ") + api.GetErrorMessage(status);
  api.ReleaseStatus(status);
  if (is_clients) {
    throw InvalidArgument(message);
  }
  throw std::runtime_error(message);
}

std::string OneLine(const std::exception& error) {
  std::istringstream words(error.what());
  std::string line;
  for (std::string word; words >> word;) {
    line += (line.empty() ? "" : " ") + word;
  }
  return line;
}

TRITONSERVER_Error* ToTriton(const std::exception& error) {
  const bool is_clients = dynamic_cast<const InvalidArgument*>(&error) != nullptr;
  return TRITONSERVER_ErrorNew(is_clients ? TRITONSERVER_ERROR_INVALID_ARG : TRITONSERVER_ERROR_INTERNAL,
                               OneLine(error).c_str());
}

bool Succeeds(const char* what, TRITONSERVER_Error* error) noexcept {
  if (error == nullptr) {
    return true;
  }
  Log(TRITONSERVER_LOG_ERROR, __FILE__, __LINE__, std::string(what) + TRITONSERVER_ErrorMessage(error));
  TRITONSERVER_ErrorDelete(error);
  return false;
}

void Log(TRITONSERVER_LogLevel level, const char* file, int line, const std::string& message) noexcept {
  // What cannot be logged cannot be told either.
  TRITONSERVER_ErrorDelete(TRITONSERVER_LogMessage(level, file, line, message.c_str()));
}

}  // namespace sparse_serve
